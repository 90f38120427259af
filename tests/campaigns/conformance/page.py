"""What the outcomes mean: what is wrong, and the pages that show them."""

from __future__ import annotations

import platform
import re
from datetime import date
from importlib.metadata import version

from tests.campaigns.conformance.outcome import FAILED, PASSED, SKIPPED, Outcomes
from tests.launching import ROOT
from tests.pages import table

# By what their names have, the first that fits.
GROUPS = {
    "DDP": "DistributedDataParallel|ddp|DDP|SyncBatchNorm|no_sync|static_graph",
    "all_reduce, reduce": "reduce",
    "all_gather, gather, scatter, broadcast": "gather|scatter|broadcast",
    "messages": "send|recv",
    "barriers": "barrier",
}
OTHERS = "groups, ranks, names"


def passed(outcomes: Outcomes) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome.status == PASSED]


def complaints(gloo: Outcomes, by_mpi: dict[str, Outcomes], left_out: dict[str, str], known: list[str]) -> list[str]:
    """What is wrong, a line each; nothing where all is well.

    Args:
        by_mpi: title of an MPI → the outcomes of what gloo passes.
        left_out: the known exceptions, name → why.
        known: the names of all tests that there are, run or not.
    """
    lines = [] if passed(gloo) else [f"gloo passes none of the {len(gloo)} tests chosen, so nothing was compared"]
    lines += [
        f"{title}: {name}: {outcome.reason or outcome.status}"
        for title, outcomes in by_mpi.items()
        for name, outcome in outcomes.items()
        if outcome.status != PASSED and name not in left_out
    ]
    for name in left_out:
        if name not in known:
            lines.append(f"left_out.py: there is no test {name}; take it out of the list")
        elif by_mpi and all(name in passed(outcomes) for outcomes in by_mpi.values()):
            lines.append(f"left_out.py: {name} passes; take it out of the list")
    return lines


def summary(gloo: Outcomes, by_mpi: dict[str, Outcomes], left_out: dict[str, str]) -> list[str]:
    """A line per MPI."""
    wanted = passed(gloo)
    lines = []
    for title, outcomes in by_mpi.items():
        reached = [name for name in wanted if name in passed(outcomes)]
        exceptions = [name for name in wanted if name in left_out and name not in reached]
        more = f"; {len(exceptions)} left out" if exceptions else ""
        lines.append(f"{title}: {len(reached)} of the {len(wanted)} tests that gloo passes{more}")
    return lines


def brief(gloo: Outcomes, by_mpi: dict[str, Outcomes], left_out: dict[str, str], notes: list[str]) -> str:
    """How many tests of each group pass, and what is left out: for docs/run/mpi-collectives.md."""
    wanted = passed(gloo)
    groups = {group: [name for name in wanted if _group(name) == group] for group in (*GROUPS, OTHERS)}
    counts = [
        [group, len(names), *(len({*names} & {*passed(outcomes)}) for outcomes in by_mpi.values())]
        for group, names in (groups | {"all": wanted}).items()
        if names
    ]
    return "\n".join(
        [
            *table(("tests", "gloo", *by_mpi), counts),
            "",
            *(f"Left out: `{name}`: {why}." for name, why in left_out.items()),
            *notes,
        ]
    )


def section(gloo: Outcomes, by_mpi: dict[str, Outcomes], left_out: dict[str, str], ranks: int, notes: list[str]) -> str:
    """One torch's results without the list of what passes: for docs/results/conformance-older.md."""
    _, _, *lines = page(gloo, by_mpi, left_out, ranks, notes).partition("\n## What passes everywhere")[0].splitlines()
    return "\n".join(line.replace("## What", "### What") for line in lines)


def page(gloo: Outcomes, by_mpi: dict[str, Outcomes], left_out: dict[str, str], ranks: int, notes: list[str]) -> str:
    """What each test came to: docs/results/conformance.md."""
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in ("torch", "mpi4py"))])
    counted = {status: [o for o in gloo.values() if o.status == status] for status in (PASSED, FAILED, SKIPPED)}
    run = sorted(name for name, outcome in gloo.items() if outcome.status != SKIPPED)
    everywhere = [name for name in run if all(name in passed(outcomes) for outcomes in (gloo, *by_mpi.values()))]
    rows = [
        [name, *(_cell(outcomes, name, left_out) for outcomes in (gloo, *by_mpi.values()))]
        for name in run
        if name not in everywhere
    ]
    lines = [
        "# PyTorch's own tests of a backend, on mpi4py",
        "",
        f"Written by `make conformance` on {date.today()}: {versions}; {ranks} ranks on one host, no GPU.",
        "",
        *(f"* {line}" for line in summary(gloo, by_mpi, left_out)),
        f"* gloo itself: {len(counted[PASSED])} passed, {len(counted[FAILED])} failed, {len(counted[SKIPPED])} skipped "
        "by torch's own conditions (they need GPUs, NCCL or more ranks)",
        *(f"* {note}" for note in notes),
    ]
    if rows:
        lines += ["", *table(("test", "gloo", *by_mpi), rows)]
    lines += _failures({"gloo": gloo, **by_mpi})
    lines += ["", "## What passes everywhere", "", *(f"* {name}" for name in everywhere)]
    return "\n".join(lines) + "\n"


def _group(name: str) -> str:
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, name)), OTHERS)


def _cell(outcomes: Outcomes, name: str, left_out: dict[str, str]) -> str:
    if name not in outcomes:
        return "not run"
    if outcomes[name].status == PASSED:
        return "✓"
    return "left out" if name in left_out else outcomes[name].status


def _failures(by_title: dict[str, Outcomes]) -> list[str]:
    lines = []
    for title, outcomes in by_title.items():
        failures = {name: outcome for name, outcome in outcomes.items() if outcome.status == FAILED}
        if failures:
            lines += ["", f"## What fails on {title}", ""]
            # (The page is for others: no folder of this machine.)
            lines += [f"* `{name}`: {outcome.reason.replace(f'{ROOT}/', '')}" for name, outcome in failures.items()]
    return lines
