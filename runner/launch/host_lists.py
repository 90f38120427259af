"""The hosts of a job, and Slurm's short forms of lists: tasks per node (``2(x3),1``) and host names (``node[1-3,07],gpu1``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path


def hosts_of_job(environment: Mapping[str, str]) -> dict[str, int]:
    """The hosts of a Slurm, PBS or LSF job with their slots; nothing outside of one.

    Raises:
        ValueError: a list has another form.
        OSError: a file of hosts cannot be read.
    """
    if names := environment.get("SLURM_JOB_NODELIST"):
        counts, hosts = environment.get("SLURM_TASKS_PER_NODE"), expand_hosts(names)
        return dict(zip(hosts, expand_counts(counts) if counts else [1] * len(hosts), strict=False))
    for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if file := environment.get(variable):
            return Counter(line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip())
    return {}


def expand_counts(text: str) -> list[int]:
    """``2(x3),1`` → ``[2, 2, 2, 1]``.

    Raises:
        ValueError: the text does not have that form.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", item)
        if match is None:
            raise ValueError(f"{text!r} is not a list like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """``n[1-2,07]-ib,gpu1`` → ``["n1-ib", "n2-ib", "n07-ib", "gpu1"]``; zero-padded widths are kept.

    Raises:
        ValueError: brackets do not match, or a range is not a range of numbers.
    """
    item = r"(?:\[[^\[\]]*\]|[^,\[\]])+"  # a comma separates names only outside brackets
    if not re.fullmatch(rf"{item}(?:,{item})*", text):
        raise ValueError(f"{text!r} is not a host list like node[1-2]")
    return [host for name in re.findall(item, text) for host in _expand_one(name.strip())]


def _expand_one(item: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", item)
    if match is None:
        return [item]
    before, after = item[: match.start()], item[match.end() :]
    names = []
    for part in match[1].split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if bounds is None:
            raise ValueError(f"{part!r} in {item!r} is not a number or a range of numbers")
        first, last = bounds[1], bounds[2] or bounds[1]
        names += [f"{before}{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return [name + rest for name in names for rest in _expand_one(after)]
