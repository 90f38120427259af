"""Find out who started this process, from its variables alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from runner.base.errors import LaunchError, UsageError
from runner.launch.context import Ignored, LaunchContext, Value
from runner.launch.host_lists import expand_counts
from runner.launch.launchers import LAUNCHERS, SINGLE, TASK_COUNTS, Launcher, launchers


class _Reading(NamedTuple):
    """The values of one launcher's variables."""

    launcher: Launcher
    rank: Value
    size: Value
    local_rank: Value | None
    local_size: Value | None

    def __str__(self) -> str:
        return (
            f"{self.launcher.title} says rank {self.rank.value} of {self.size.value} "
            f"({self.rank.source}, {self.size.source})"
        )


def detect(environment: Mapping[str, str], launcher: str | None = None) -> LaunchContext:
    """Find the launcher that started this process, and what its variables say.

    Args:
        environment: the process's variables.
        launcher: a name from the table, or ``single``; it replaces the detection.

    Raises:
        LaunchError: a set of variables is incomplete, malformed, or contradicts another one.
    """
    if launcher == SINGLE.name:
        return _single(environment, "chosen by --launcher single", is_chosen=True)
    if launcher is not None:
        row = next((row for row in launchers() if row.name == launcher), None)
        if row is None:
            names = ", ".join([row.name for row in launchers()] + [SINGLE.name])
            raise LaunchError(f"unknown launcher {launcher!r}", fix=f"one of: {names}")
        why = f"chosen by --launcher {launcher}"
        return _context(_read(row, environment), environment, why, is_chosen=True)

    readings = [_read(row, environment) for row in launchers() if is_marked(row, environment)]
    if not readings:
        _refuse_half_set(environment)
        return _single(environment, _why_single(environment))
    winner, others = readings[0], readings[1:]
    for other in others:
        agrees = (other.rank.value, other.size.value) == (winner.rank.value, winner.size.value)
        if not agrees and other.launcher.kind not in winner.launcher.nested_in:
            # By the choice of one that says 1 each of the other's processes would train alone.
            choices = [f"--launcher {one.launcher.name}" for one in (winner, other) if one.size.value > 1]
            raise LaunchError(
                f"two launchers disagree: {winner}, but {other}",
                fix=f"choose the one that started this process: {' or '.join(choices)}",
            )
    marks = ", ".join(_shown(mark, environment) for mark in winner.launcher.requires)
    return _context(winner, environment, f"{marks} set", tuple(_ignored(winner, others, environment)))


def is_marked(row: Launcher, environment: Mapping[str, str]) -> bool:
    """Whether the variables that mark a launcher are set, and do not mean a step without ranks."""
    return (
        all(_name_of(mark, environment) in environment for mark in row.requires)
        and not any(name in environment for name in row.excludes)
        and not any(environment.get(name) in values for name, values in row.not_a_rank.items())
        and not _is_set_by_other(row, environment)
    )


def _is_set_by_other(row: Launcher, environment: Mapping[str, str]) -> bool:
    """Whether another launcher has set this one's variables: the one that may do so has started the process, with the same rank."""
    other = next((other for other in launchers() if other.name == row.also_set_by), None)
    if other is None or not is_marked(other, environment):
        return False
    sizes = [_text(cell, environment) for cell in (row.size, other.size)]
    return _text(row.rank, environment) == _text(other.rank, environment) and (not sizes[0] or sizes[0] == sizes[1])


def _text(cell: str, environment: Mapping[str, str]) -> str:
    return environment.get(_name_of(cell, environment), "").strip()


def is_reporting(environment: Mapping[str, str]) -> bool:
    """Whether this process should print an error found before its rank is known: no variable gives it a rank above 0."""
    try:
        rows = launchers()
    except UsageError:  # this is the error to be printed
        rows = LAUNCHERS
    ranks = [environment.get(row.rank, "") for row in rows if not row.is_set_in_batch or is_marked(row, environment)]
    return not any(rank.isdecimal() and int(rank) > 0 for rank in ranks)


def tasks_of_job(environment: Mapping[str, str]) -> int:
    """The number of tasks of the scheduler's job; 0 if it is not known."""
    for name in TASK_COUNTS:
        text = environment.get(name, "")
        if os.path.isfile(text):
            with open(text, encoding="utf-8", errors="replace") as lines:
                text = str(sum(1 for line in lines if line.strip()))
        if text.isdecimal():
            return int(text)
    return 0


def _name_of(cell: str, environment: Mapping[str, str]) -> str:
    """The name in ``A|B`` that is set, or the first."""
    names = cell.split("|")
    return next((name for name in names if environment.get(name)), names[0])


def _shown(cell: str, environment: Mapping[str, str]) -> str:
    name = _name_of(cell, environment)
    return f"{name}={environment.get(name, '')}"


def _value(cell: str, environment: Mapping[str, str], total: int = 0) -> Value | None:
    """The number that a cell of the table refers to, or None if it is not known.

    Args:
        total: the sum of the list that the cell refers to, if it refers to one.
    """
    if not cell:
        return None
    indexed = re.fullmatch(r"(\w+)\[(\w+)\]", cell)
    if indexed is not None:
        listed, index = environment.get(indexed[1]), environment.get(indexed[2])
        if listed is None or index is None:
            return None
        try:
            counts = expand_counts(listed)
            # Each component of a heterogeneous step has its own list, and an index that counts all components' nodes.
            return Value(counts[int(index)], f"{indexed[1]}={listed}[{index}]") if sum(counts) == total else None
        except (ValueError, IndexError):
            raise LaunchError(f"{indexed[1]}={listed} has no entry {indexed[2]}={index}") from None
    name = _name_of(cell, environment)
    text = environment.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise LaunchError(f"{name}={text!r} is not a number", fix="the launcher sets it, so unset yours")
    return Value(int(text), name)


def _read(row: Launcher, environment: Mapping[str, str]) -> _Reading:
    rank, size = _value(row.rank, environment), _value(row.size, environment)
    if rank is None or size is None:
        raise _half_set(row, environment)
    if rank.value >= size.value:
        raise LaunchError(f"{rank.source}={rank.value} is not below {size.source}={size.value} ({row.title})")
    local_rank, local_size = _value(row.local_rank, environment), _value(row.local_size, environment, size.value)
    if local_rank and local_size and local_rank.value >= local_size.value:
        raise LaunchError(
            f"{local_rank.source}={local_rank.value} is not below {local_size.source}={local_size.value} ({row.title})"
        )
    return _Reading(row, rank, size, local_rank, local_size)


def _half_set(row: Launcher, environment: Mapping[str, str]) -> LaunchError:
    cells = dict.fromkeys((*row.requires, row.rank, row.size))
    found = [_shown(cell, environment) for cell in cells if _name_of(cell, environment) in environment]
    missing = [cell.replace("|", " or ") for cell in cells if _name_of(cell, environment) not in environment]
    return LaunchError(
        f"{row.title} is half set: {', '.join(found) or 'nothing'} without {', '.join(missing)}",
        # (Without these, or by --launcher single, each of several ranks would train alone.)
        fix="start through the launcher, or set the rest",
    )


def _refuse_half_set(environment: Mapping[str, str]) -> None:
    """Refuse a rank or a size without the rest of its set: with it, N processes would each train alone."""
    for row in launchers():
        # An endpoint alone (MASTER_ADDR, MASTER_PORT) is no rank, so ``requires`` does not count here.
        cells = (row.rank, row.size) if row.half_set_is_an_error else ()
        if any(_name_of(cell, environment) in environment for cell in cells):
            raise _half_set(row, environment)


def _ignored(winner: _Reading, others: list[_Reading], environment: Mapping[str, str]) -> list[Ignored]:
    found = []
    for other in others:
        names = (other.rank.source, other.size.source)
        if other.launcher.kind in winner.launcher.nested_in:
            why = (
                f"{winner.launcher.title} runs inside {other.launcher.title}; rank {other.rank.value} is its own task's"
            )
        else:
            why = f"agrees with {winner.launcher.title}"
        found.append(Ignored(names, why))
    for row in launchers():
        if row.also_set_by == winner.launcher.name and _is_set_by_other(row, environment):
            found.append(Ignored((_name_of(row.rank, environment),), f"{winner.launcher.title} sets it, too"))
    read = {other.launcher.name for other in (winner, *others)}
    for row in launchers():
        stray = [name for name in row.stray if name in environment]
        # (Not if they are the winner's own: torchrun sets the variables that users also set by hand.)
        if stray and row.name not in read and winner.launcher.rank not in row.stray:
            found.append(Ignored(tuple(stray), row.stray_note.format(title=winner.launcher.title)))
    return found


def _why_single(environment: Mapping[str, str]) -> str:
    if "SLURM_JOB_ID" in environment:
        return f"inside Slurm job {environment['SLURM_JOB_ID']} but not started by srun or mpirun"
    if "PBS_JOBID" in environment:
        return f"inside PBS job {environment['PBS_JOBID']} but not started by mpirun"
    return "no launcher's variables are set"


def _single(environment: Mapping[str, str], why: str, *, is_chosen: bool = False) -> LaunchContext:
    none = Value(0, "default"), Value(1, "default")
    reading = _Reading(SINGLE, none[0], none[1], none[0], none[1])
    return _context(reading, environment, why, is_chosen=is_chosen)


def _context(
    reading: _Reading,
    environment: Mapping[str, str],
    why: str,
    ignored: tuple[Ignored, ...] = (),
    *,
    is_chosen: bool = False,
) -> LaunchContext:
    variables = MappingProxyType(dict(environment))
    return LaunchContext(**reading._asdict(), why=why, is_chosen=is_chosen, ignored=ignored, environment=variables)
