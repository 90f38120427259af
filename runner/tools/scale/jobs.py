"""A study by jobs: a job script per size, and what they have left, put together; also where one is missing.

In the study's folder each row has a folder, and in it one for each of its runs with what is asked of the run and what its ranks have
seen; beside it are the job's script and output. manifest.json says what the rows are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.base.errors import RunnerError, UsageError
from runner.measuring.facts import read_facts
from runner.measuring.measured_run import StepsSeen, StepsWanted, read_measured
from runner.tools.costs.study import Size, Study
from runner.tools.job_scripts.script import script, submit
from runner.tools.scale.rows import judge, take, take_without_data

_MANIFEST = "manifest.json"
_ONE_BATCH = "one-batch"  # the run whose loaders give their first batch again and again
# What schedulers say in a job's output when its time is over, and when they end it: also after a rank has failed.
_TIME_LIMIT = re.compile(r"\w+ AT .*TIME LIMIT|TERM_RUNLIMIT.*|walltime.*exceeded.*", re.IGNORECASE)
_ENDED = re.compile(r"CANCELLED.*|TERM_OWNER.*|job killed.*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A row of the study, before it is measured."""

    size: Size
    nodes: int
    words: tuple[str, ...]  # -m, if it is given, the target, and its arguments


def write_jobs(
    rows: Sequence[JobRow],
    wanted: StepsWanted,
    before: Sequence[str],
    given: Namespace,
    environment: Mapping[str, str],
    command: str,
) -> None:
    """Write a script for each row, and submit it if that is asked for. Prints a line for each.

    Args:
        wanted: of the first run; the others have no trace.
        before: the runner's options for the runs.
        given: what the jobs ask for, as ``add_request`` has it, ``rounds``, ``folder`` and ``submit``.
        environment: for the jobs.
        command: of the study, for its caption.

    Raises:
        UsageError: the folder has a study, or a script cannot be written or submitted.
    """
    folder = Path(given.folder)
    if (folder / _MANIFEST).exists():
        raise UsageError(f"{folder} has a study", fix="name another --folder, or --collect it")
    entries: list[dict[str, Any]] = []
    for row in (row for row in rows if not row.size.problem):
        name = f"{row.size.scaling}-{row.size.ranks:05}"
        place = (folder / name).absolute()
        asked = Namespace(**vars(given) | {"nodes": row.nodes, "name": name, "log": f"{place}.out", "requeue": False})
        asked.form, asked.target, *asked.arguments = row.words if row.words[0] == "-m" else ("", *row.words)
        path = place.with_suffix(".sh")
        try:
            text = script(asked, [[f"--measure={run}", *before] for run in _make_runs(place, wanted, given.rounds)])
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--folder {folder}: {error.strerror}", fix="name one that can be written") from None
        answer = _submitted(asked, text, environment, len(entries)) if given.submit else "not submitted"
        print(f"{path}: {answer}", flush=True)
        entries.append({"folder": name, "nodes": row.nodes, "answer": answer, "size": asdict(row.size)})
        problems = [asdict(one.size) for one in rows if one.size.problem]
        content = {"target": asked.target, "command": command, "rows": entries, "problems": problems}
        (folder / _MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _make_runs(place: Path, wanted: StepsWanted, rounds: int) -> list[Path]:
    """The folders of a row's runs, each with what is asked of it."""
    asked = {f"round-{number + 1}": replace(wanted, profiled=0) for number in range(rounds)}
    asked |= {"round-1": wanted, _ONE_BATCH: replace(wanted, profiled=0, fixed_data=True)}
    for name, one in asked.items():
        (place / name).mkdir(parents=True, exist_ok=True)
        one.write(place / name)
    return [place / name for name in asked]


def _submitted(asked: Namespace, text: str, environment: Mapping[str, str], before: int) -> str:
    try:
        return submit(asked, text, environment)
    except RunnerError as error:
        if before:
            error.fix = f"{before} of the sizes submitted: scale --collect {asked.folder} will have them" + (
                f"; {error.fix}" if error.fix else ""
            )
        raise


def collect(folder: Path) -> Study:
    """Put together what the jobs have left.

    Raises:
        UsageError: the folder has no study.
    """
    try:
        content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = [Size(**size) for size in content["problems"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{folder} has no study", fix="name the folder that scale --nodes … has made") from None
    facts: dict[str, Any] = {}
    for entry in content["rows"]:
        size = Size(**entry["size"])
        size.hosts = entry["nodes"]
        place = folder / entry["folder"]
        rounds = sorted(place.glob("round-*"))
        for run in rounds:
            with contextlib.suppress(OSError, ValueError, TypeError):  # cut short: the round is missing
                found = read_measured(run)
                if len(found) != size.ranks:
                    continue
                of_run = read_facts(run)
                take(size, found)
                facts = of_run | {"hosts": max(entry["nodes"], facts.get("hosts", 0))}
        if size.rounds:
            _add_one_batch(size, read_measured(place / _ONE_BATCH))
        if len(size.rounds) < len(rounds) or not rounds:
            why = _why_missing(place.with_suffix(".out"), entry["answer"])
            size.problem = f"{len(size.rounds)} of {len(rounds)} rounds are done; {why}" if size.rounds else why
        sizes.append(size)
    judge(sizes, facts.get("cores") or os.cpu_count() or 1)
    sizes.sort(key=lambda size: (size.scaling, size.ranks))
    return Study(target=content["target"], sizes=sizes, command=content["command"], facts=facts)


def _add_one_batch(size: Size, found: Sequence[StepsSeen]) -> None:
    if size.waits_for_data and len(found) == size.ranks:
        take_without_data(size, found, "")


def _why_missing(log: Path, answer: str) -> str:
    """What the job's output says of it."""
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return f"its job has not begun, or was cancelled before ({answer})"
    own = [line.removeprefix("runner: ") for line in lines if line.startswith("runner: ")]
    ended, over = (
        [found[0].strip("* ") for line in lines if (found := kind.search(line))] for kind in (_ENDED, _TIME_LIMIT)
    )
    return f"its job says: {[*over, *own, *ended, *lines[-1:], 'nothing yet'][0].strip()}"
