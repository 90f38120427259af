"""What the ranks tell each other when they meet, and what they refuse before anything is trained."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import runner
from runner.errors import RefusedError
from runner.launch.context import LaunchContext
from runner.rendezvous.records import Records
from runner.rendezvous.topology import Topology, ranks_text, topology_of

Record = dict[str, Any]

# What must be equal on all ranks, and how messages call it.
_ALIKE = {
    "size": "the number of ranks",
    "launcher": "the launcher",
    "python": "Python",
    "torch": "torch",
    "runner": "the runner",
    "target": "the target",
    "digest": "the target's content",
    "arguments": "the arguments",
}
VERSIONS = ("python", "torch", "runner")


def own_record(context: LaunchContext, **more: Any) -> Record:
    """This rank's record: who and where it is, its versions, and what the caller adds."""
    return {
        "rank": context.rank.value,
        "size": context.size.value,
        "local_rank": context.local_rank.value if context.local_rank else None,
        "launcher": context.launcher.name,
        "sources": {
            name: value.source
            for name in ("rank", "size", "local_rank", "local_size")
            if (value := getattr(context, name)) is not None
        },
        "host": context.host,
        "host_key": _host_key(context.host),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": torch_version(),
        "runner": runner.__version__,
        **more,
    }


def check(everyone: Sequence[Mapping[str, Any]], *, same_versions: bool = True) -> Topology:
    """Compare all ranks' records, and say where everybody is.

    Args:
        same_versions: refuse ranks of different versions.

    Raises:
        RefusedError: ranks differ in something that must be equal, or one of them has a problem of its own.
    """
    records = everyone if isinstance(everyone, Records) else Records.of(everyone)
    if list(records.of_field("problem")[0]) != [None]:
        texts = []
        for problem, ranks in records.by_value("problem"):
            if problem is not None:
                where = "" if len(ranks) == len(records) else f" (on {_where(ranks, records)} only)"
                texts.append(f"{problem}{where}")
        raise RefusedError("; ".join(texts))
    differences = []
    for field, title in _ALIKE.items():
        if field in VERSIONS and not same_versions:
            continue
        if len(records.of_field(field)[0]) > 1:
            values = records.by_value(field)
            shown = "; ".join(f"{_text(value)} on {_where(ranks, records)}" for value, ranks in values)
            differences.append(f"{title}: {shown}")
    if differences:
        raise RefusedError(
            f"the ranks differ in {' | '.join(differences)}",
            fix="start all of them with the same installation, files and arguments",
        )
    claimed = records.column("rank")
    if claimed != list(range(len(records))):
        raise RefusedError(f"the ranks say they are {claimed}, not 0 to {len(records) - 1}")
    return topology_of(records)


def torch_version() -> str:
    """The version of the torch that ``import torch`` would bring, read from its files; "" where there is none."""
    spec = find_spec("torch")
    for folder in spec.submodule_search_locations or () if spec else ():
        try:
            match = re.search(r"__version__ = '([^']+)'", (Path(folder) / "version.py").read_text())
        except OSError:
            continue
        if match:
            return match[1]
    return ""


def _host_key(host: str) -> str:
    """Tells hosts apart, also two virtual ones on one machine (by network), or of one name (by boot)."""
    parts = [host]
    for path, read in (("/proc/sys/kernel/random/boot_id", Path.read_text), ("/proc/self/ns/net", os.readlink)):
        try:
            parts.append(str(read(Path(path))).strip())
        except OSError:
            continue
    return "/".join(parts)


def _where(ranks: list[int], records: Records) -> str:
    hosts = ", ".join(dict.fromkeys(records[rank]["host"] for rank in ranks))
    return f"{ranks_text(ranks)} ({hosts})"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"
