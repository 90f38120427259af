"""What ``make test-faults`` writes: docs/results/faults.md, which has all that was found, and the list in docs/run/failures.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.campaigns.faults.scene import REPLACE_CODES
from tests.pages import rows_of, table

_HEAD = """# Faults, and how each job ended

Written by `make test-faults`: two ranks on two hosts of the virtual cluster, `workloads`' training loop, `--hang-timeout 3` where the
case is a hang. The rows are of several runs, and other programs ran at the same time.

## Seconds

From the fault to the launcher's end (of a job whose start is the fault, from its start; of one that continues, to its good end), and the
exit code where it is not that of the column. Empty: not tried under this launcher. A job ended as expected (code, first line, no process
left three seconds later) unless its cell says what was not.
"""
_LINES = """## First lines

What the runner printed first; lines that differ only in numbers are here once.
"""
_NOTHING = "–"
_SEPARATOR = " · "


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: seconds and exit code, the first line, and what was not as expected ("" if all was)."""

    seconds: str
    code: str
    line: str
    problem: str = ""


Faults = dict[tuple[str, str], dict[str, Ended]]  # number and title of a case → launcher → how it ended


def page(found: Faults, launchers: Iterable[str]) -> str:
    names = [name for name in launchers if any(name in ends for ends in found.values())]
    seconds, lines = [], []
    for case, ends in found.items():
        code = _codes(ends.values())[0]
        seconds.append([*case, code, *(_cell(ends[name], code) if name in ends else "" for name in names)])
        alike = _alike(ends)
        for line, under in alike.items():
            lines.append([*case, "all" if len(alike) == 1 else ", ".join(under), line or _NOTHING])
    return "\n".join(
        [
            *(_HEAD, *table(("case", "", "exit code", *names), seconds), ""),
            *(_LINES, *table(("case", "", "launchers", "first line"), lines), ""),
        ]
    )


def read(text: str) -> Faults:
    """What a page has, to put a few of its cases anew."""
    _, _, rest = text.partition("## Seconds")
    seconds, _, lines = rest.partition("## First lines")
    names = [
        cell.strip() for cell in next(line for line in seconds.splitlines() if line.startswith("|")).split("|")[4:-1]
    ]
    first = {(number, title, under): line for number, title, under, line in rows_of(lines.splitlines())}
    found: Faults = {}
    for number, title, code, *cells in rows_of(seconds.splitlines()):
        printed = {
            name: "" if line == _NOTHING else line
            for (*case, under), line in first.items()
            if case == [number, title]
            for name in (names if under == "all" else under.split(", "))
        }
        found[number, title] = {
            name: _ended(cell, code, printed[name]) for name, cell in zip(names, cells, strict=True) if cell
        }
    return found


def summary(found: Faults) -> str:
    """A line per case: the exit codes of the launchers that pass them on, and the longest time."""
    rows = []
    for case, ends in found.items():
        codes = _codes([one for name, one in ends.items() if name not in REPLACE_CODES] or ends.values())
        slowest = max(ends, key=lambda name: float(ends[name].seconds or 0))
        wrong = [f"{name}: {one.problem}" for name, one in ends.items() if one.problem]
        rows.append([*case, ", ".join(codes), "; ".join([f"{ends[slowest].seconds} ({slowest})", *wrong])])
    return "\n".join(table(("case", "", "exit code", "seconds, at most"), rows))


def _codes(ends: Iterable[Ended]) -> list[str]:
    """The exit codes, the usual one first."""
    return [code for code, _ in Counter(one.code for one in ends).most_common()]


def _alike(ends: dict[str, Ended]) -> dict[str, Sequence[str]]:
    """First lines → the launchers under which they were printed."""
    lines: dict[str, str] = {}
    under: dict[str, list[str]] = {}
    for name, one in ends.items():
        line = lines.setdefault(re.sub(r"(?<!rank )(?<!node)\b\d+(\.\d+)?\b", "N", one.line), one.line)
        under.setdefault(line, []).append(name)
    return dict(under)


def _cell(one: Ended, usual: str) -> str:
    code = [] if one.code == usual else [one.code]
    return _SEPARATOR.join([one.seconds or _NOTHING, *code, *([one.problem] if one.problem else [])])


def _ended(cell: str, usual: str, line: str) -> Ended:
    seconds, *more = cell.split(_SEPARATOR)
    code = more.pop(0) if more and re.fullmatch(r"-?\d+", more[0]) else usual
    return Ended(seconds="" if seconds == _NOTHING else seconds, code=code, line=line, problem=_SEPARATOR.join(more))
