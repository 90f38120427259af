"""The launcher's processes above this one: which mpirun it was, and whether its output goes to a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from runner.launch.commands import MPIRUNS, calls_torchrun

if TYPE_CHECKING:
    import psutil

# Names of the processes that start ranks on a host: Open MPI's mpirun (orterun, prterun) and daemons, Hydra's
# mpiexec and proxies, Slurm's step daemon, PALS, jsrun, Flux.
LAUNCHER_PROCESSES = frozenset(
    {
        *(*MPIRUNS, "orted", "prted", "prte"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy", "mpiexec.gforker", "mpispawn"),
        *("slurmstepd", "srun", "palsd", "jsrun", "jsmd", "flux-shell"),
    }
)

# Those of them that forward whole lines only: Open MPI 5's (PRRTE), under whatever name it was started.
_HOLD_LINES = frozenset({"prterun", "prted", "prte"})

# Those of them whose every child is a rank. Slurm's also start batch scripts and shells.
RANK_STARTERS = LAUNCHER_PROCESSES - {"slurmstepd", "srun", "flux-shell"}


_own: list[int] = []


def stand_for(process: int) -> None:
    """This process works for a rank for which the launcher has started another one: what is above that counts."""
    _own[:] = [process]


def own_process() -> int:
    """The process that the launcher has started for this rank."""
    return _own[0] if _own else os.getpid()


def ancestors(process: int | None = None) -> Iterator[psutil.Process]:
    """The ancestors of the process that the launcher has started, nearest first, as far as they are visible."""
    import psutil

    try:
        above = psutil.Process(process or own_process()).parent()
        while above is not None:
            yield above
            above = above.parent()
    except psutil.Error:
        return


def launcher_process(started: int | None = None, names: frozenset[str] = LAUNCHER_PROCESSES) -> psutil.Process | None:
    """The nearest ancestor that is a launcher, or None. ``started``: the process that it has started, if not this one's."""
    return next((process for process in ancestors(started) if is_one_of(process, names)), None)


def rank_starter(environment: Mapping[str, str], started: int | None = None) -> tuple[psutil.Process, str] | None:
    """The nearest ancestor that starts ranks only, and its name; None if there is none. Slurm's may start batch scripts and shells."""
    for process in ancestors(started):
        if is_one_of(process, RANK_STARTERS):
            return process, process.name()
        words = command_line(process)
        if calls_torchrun(words[:4]):
            return process, "torchrun"
        # A job step's title is "slurmstepd: [4711.0]"; a batch script's ends in "batch". All variables are gone, or it is known.
        if re.fullmatch(r"slurmstepd: \[\d+\.\d+\].*", " ".join(words)) and "SLURM_JOB_ID" not in environment:
            return process, "srun"
    return None


def command_line(process: psutil.Process) -> list[str]:
    """The words of a process's command line; none if it is ending or may not be read."""
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_one_of(process: psutil.Process, names: frozenset[str]) -> bool:
    """Whether a process, or the program that it runs, has one of these names (mpirun.openmpi runs orterun)."""
    import psutil

    try:
        return process.name() in names or os.path.basename(executable(process)) in names
    except psutil.Error:
        return False


def executable(process: psutil.Process) -> str:
    """The path of a process's program, or an empty string if it may not be read."""
    import psutil

    try:
        return process.exe()
    except psutil.Error:
        return ""


def typed_in_a_shell() -> bool:
    """Whether this process descends from an interactive shell: the shell's job control puts it in a group of its own.

    A process that a terminal's session leader starts without a shell stays in the leader's group, and a launcher's ranks
    have no terminal.
    """
    if os.getpgrp() == os.getsid(0):
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def on_terminal(*, in_place: bool = False) -> bool:
    """Whether this process's output appears on a terminal at once.

    Open MPI gives its ranks a pseudo-terminal whatever its own output is, so the launchers above are checked too.

    Args:
        in_place: whether unfinished lines must appear, too, as a line that is redrawn in place needs.
    """
    if not os.isatty(1):
        return False
    process = launcher_process()
    while process is not None:
        if in_place and is_one_of(process, _HOLD_LINES):
            return False
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/1")
        except OSError:
            return False
        if not target.startswith(("/dev/pts/", "/dev/tty")):
            return False
        process = next((p for p in process.parents() if is_one_of(p, LAUNCHER_PROCESSES)), None)
    return True
