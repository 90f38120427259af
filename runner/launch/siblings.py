"""Other ranks of this launch on this host that run another program, as in ``mpirun A : B``: the ranks would wait for them for ever."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.base.command_name import COMMAND
from runner.launch.context import LaunchContext
from runner.launch.launcher_processes import command_line, launcher_process

if TYPE_CHECKING:
    import psutil

HOW_TO_START = f"start all ranks as {COMMAND} …, and another program by a launch of its own"
_OURS = "runner"  # in a word of the command line of every process of a rank of the runner
_SHOWN = 80  # characters of a command line


class OtherProgram(NamedTuple):
    """A rank of which no process is the runner."""

    rank: int
    command: str
    is_final: bool  # it has loaded MPI, so it is no wrapper that is about to start the runner


class Siblings(NamedTuple):
    """The ranks of this host that run another program."""

    others: Sequence[OtherProgram] = ()
    is_speaking: bool = True  # this is the first rank here that runs the runner


def siblings_of(context: LaunchContext) -> Siblings:
    """Find the ranks of this host that run another program.

    Nothing is found where the launcher's process is not above this one, or this process was not started by the runner's name.
    """
    import psutil

    launcher = launcher_process(context.process)
    if launcher is None or not _is_ours(command_line(psutil.Process(context.process))):
        return Siblings()
    by_rank: dict[int, list[psutil.Process]] = {}
    try:
        started = launcher.children(recursive=True)
    except psutil.Error:
        return Siblings()
    for process in started:
        rank = _variables(process).get(context.rank.source, "")
        if rank.isdecimal():
            by_rank.setdefault(int(rank), []).append(process)
    words = {rank: [command_line(process) for process in processes] for rank, processes in by_rank.items()}
    ours = {rank for rank, lines in words.items() if any(map(_is_ours, lines))}
    # A process that is ending has no words any more.
    others = [rank for rank in sorted(by_rank.keys() - ours) if all(words[rank])]
    found = [
        OtherProgram(rank, shlex.join(words[rank][-1])[:_SHOWN], any(map(_has_loaded_mpi, by_rank[rank])))
        for rank in others
    ]
    return Siblings(found, context.rank.value == min(ours, default=context.rank.value))


def _is_ours(words: list[str]) -> bool:
    return any(_OURS in word for word in words)


def _variables(process: psutil.Process) -> Mapping[str, str]:
    import psutil

    try:
        return process.environ()
    except psutil.Error:
        return {}


def _has_loaded_mpi(process: psutil.Process) -> bool:
    """Whether a program has loaded MPI by itself. A profiler that is preloaded brings it into every shell, too."""
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return "/libmpi" in maps and "LD_PRELOAD" not in _variables(process)
