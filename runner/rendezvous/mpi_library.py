"""Which MPI library mpi4py is to load: the one whose mpirun started this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path

from runner.launch.context import LaunchContext
from runner.launch.processes import RANK_STARTERS, executable, launcher_process

# Directories that show a fabric: InfiniBand, RoCE and EFA; Slingshot; Omni-Path; usNIC.
_FABRICS = ("/sys/class/infiniband/*", "/sys/class/cxi/*", "/sys/class/hfi1/*", "/sys/class/infiniband_verbs/*")


def settings_for_mpi(context: LaunchContext) -> dict[str, str]:
    """Variables to set before mpi4py is imported; none that the user has set.

    * ``MPI4PY_LIBMPI``: mpi4py's wheels fit any MPI and take the virtual environment's, or the loader's
      first. Under the mpirun of another installation that gives N worlds of one rank each.
    * ``OMPI_MCA_btl``, ``OMPI_MCA_mtl`` on a single host without a fabric: Open MPI 5 else spends a second
      of MPI_Init probing for one. (On several hosts all must decide alike, so there it may probe.)
    """
    environment = context.environment
    settings = {}
    if not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & set(environment):
        library = library_of_launcher()
        if library:
            settings["MPI4PY_LIBMPI"] = library
    if context.launcher.name == "openmpi" and context.on_one_host and not _has_fabric():
        settings.update(_unless_set(environment, OMPI_MCA_btl="^ofi", OMPI_MCA_mtl="^ofi"))
    return settings


def library_of_launcher() -> str | None:
    """The MPI library that belongs to the launcher process above this one; None where that cannot be told."""
    starter = launcher_process(RANK_STARTERS)
    program = executable(starter) if starter is not None else ""
    if not program:
        return None
    prefix = Path(program).parent.parent
    if prefix == Path("/usr"):
        return _of_the_system(program)
    for folder in ("lib", "lib64", "lib/release"):
        for name in ("libmpi.so.40", "libmpi.so.12"):  # Open MPI; MPICH, Intel MPI and their kin
            library = prefix / folder / name
            if library.is_file():
                return str(library)
    return None


def _of_the_system(program: str) -> str:
    # A distribution puts its library on the loader's path, where the name is enough.
    return "libmpich.so.12" if "hydra" in os.path.basename(program) else "libmpi.so.40"


def _has_fabric() -> bool:
    return any(glob(pattern) for pattern in _FABRICS)


def _unless_set(environment: Mapping[str, str], **settings: str) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in environment}
