"""The MPI library and its lifetime: which one mpi4py loads, what it can do, and how it is finalised."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
import time
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.environment import set_variables
from runner.base.errors import RefusedError, RendezvousError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.launch.launcher_processes import RANK_STARTERS, executable, launcher_process
from runner.rendezvous.transport.endpoint import MpiUnavailable, NoMpi

if TYPE_CHECKING:
    from mpi4py import MPI

_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 5e-3  # seconds between two tests whether all ranks have reached their end

# Directories that show a fabric: InfiniBand, RoCE and EFA; Slingshot; Omni-Path; usNIC.
_FABRICS = ("/sys/class/infiniband/*", "/sys/class/cxi/*", "/sys/class/hfi1/*", "/sys/class/infiniband_verbs/*")


class NoLibraryError(RendezvousError):
    """mpi4py has found no MPI library that it can load."""


def mpi_unavailable(context: LaunchContext) -> MpiUnavailable | None:
    """Why the rendezvous cannot use MPI; None if it can, as far as is known before MPI_Init."""
    if not any(context.environment.get(name) for name in context.launcher.mpi):
        message = f"{context.launcher.title} did not start this process as an MPI rank"
        return MpiUnavailable(NoMpi.NOT_A_RANK, message)
    if importlib.util.find_spec("mpi4py") is None:
        return MpiUnavailable(NoMpi.NOT_INSTALLED, "mpi4py is not installed")
    return None


def load_mpi(context: LaunchContext) -> Any:
    """Import mpi4py, which initialises MPI, with the library of the mpirun that started this process.

    Raises:
        NoLibraryError: no MPI library was found.
        RefusedError: the library found does not belong to the launcher.
    """
    set_variables(settings_for_mpi(context))
    try:
        import mpi4py

        # After an exception MPI_Finalize() would wait for the others for ever.
        given, mpi4py.rc.finalize = mpi4py.rc.finalize, False
        from mpi4py import MPI

        mpi4py.rc.finalize = given  # as a program expects it: it is read by the import only
        if not _is_initialised(MPI):  # the program has imported it, and left that out
            MPI.Init_thread()
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise NoLibraryError(
            f"mpi4py found no usable MPI library ({reason})",
            fix="set MPI4PY_LIBMPI to the libmpi.so of your mpirun, or say --rendezvous file (one host) or hosts",
        ) from None
    with raised_on_all_ranks():
        _check_world(MPI.COMM_WORLD, MPI.Get_library_version(), context)
    _finalise_politely()
    _let_program_initialise()
    return MPI


def _check_world(world: MPI.Intracomm, library_version: str, context: LaunchContext) -> None:
    """Refuse an MPI that is not the launcher's: with it each rank is alone in a world of its own."""
    if (world.size, world.rank) != (context.size.value, context.rank.value):
        version = library_version.split(",")[0].strip().rstrip("\0")
        wanted = library_of_launcher() or "/path/of/your/mpirun's/lib/libmpi.so"
        raise RefusedError(
            f"{context.launcher.title} says rank {context.rank.value} of {context.size.value}, but MPI says rank "
            f"{world.rank} of {world.size}: mpi4py loaded {version}, which is not the library of the mpirun that "
            "started this job",
            fix=f"set MPI4PY_LIBMPI={wanted}",
        )


@functools.cache
def _finalise_politely() -> None:
    """Make MPI_Finalize(), whoever calls it, first wait with pauses until all ranks have called it.

    MPI_Finalize() itself waits for all ranks without a pause. Where ranks share a core, that takes the core from ranks that
    have not got there: seen with Intel MPI and Linux 6.18, eight ranks on two cores, where two of them did not run for
    minutes. MPI_Finalize() begins by deleting the attributes of MPI_COMM_SELF, when all of MPI can still be used (MPI 3.1,
    8.7.1).
    """
    from mpi4py import MPI

    def wait_for_all(*_: Any) -> None:
        nap, all_are_here = _SHORTEST_NAP, MPI.COMM_WORLD.Ibarrier()
        while not all_are_here.Test():
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=wait_for_all), True)


@functools.cache
def _let_program_initialise() -> None:
    """Let a program initialise MPI itself, which is initialised already: to it MPI is not until it does so.

    Such a program says ``mpi4py.rc.initialize = False``, or asks whether MPI is initialised first.
    """
    import mpi4py
    from mpi4py import MPI

    is_initialised, has_called = MPI.Is_initialized, threading.Event()

    def Is_initialized() -> bool:
        return is_initialised() and (mpi4py.rc.initialize or has_called.is_set())

    def Init() -> None:
        has_called.set()

    def Init_thread(required: int = MPI.THREAD_MULTIPLE) -> int:
        has_called.set()
        return MPI.Query_thread()

    for function in (Is_initialized, Init, Init_thread):
        setattr(MPI, function.__name__, functools.wraps(getattr(MPI, function.__name__))(function))


def _is_initialised(MPI: Any) -> bool:
    return bool(getattr(MPI.Is_initialized, "__wrapped__", MPI.Is_initialized)())


def threads_may_call() -> bool:
    """Whether the loaded MPI lets several threads call it at once."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is None or bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


# The functions by which MPIs report whether they accept addresses of GPU memory (mpi-ext.h of Open MPI and of MPICH).
_QUESTIONS = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_hip_support")


def takes_gpu_memory() -> bool:
    """Whether the loaded MPI reports that it accepts GPU memory; False if it has none of these functions."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and _accepts_gpu_memory(MPI.__file__)


# MPIs whose non-blocking reductions take GPU memory, as they say. Open MPI's crash on it (its documentation lists them among
# the calls without CUDA; ompi #9845, #12045); MPICH's "GPU support matrix" has reductions on NVIDIA's and Intel's GPUs.
_REDUCE_ON_GPUS = ("MPICH",)


def reduces_gpu_memory() -> bool:
    """Whether the loaded MPI also takes GPU memory where it computes with it, in non-blocking calls."""
    return takes_gpu_memory() and sys.modules["mpi4py.MPI"].get_vendor()[0] in _REDUCE_ON_GPUS


@functools.cache
def _accepts_gpu_memory(module: str) -> bool:
    library = ctypes.CDLL(module)  # finds symbols also in the libraries it is linked to: MPI's
    return any(hasattr(library, question) and getattr(library, question)() for question in _QUESTIONS)


# Set where a thread is in an MPI call that will not end: MPI_Finalize() would wait for it for ever.
abandoned = threading.Event()


def finalize_mpi() -> bool:
    """Finalise MPI, if this process has initialised it and not finalised it.

    Returns:
        Whether the library needs its C exit handlers. MPICH and its derivatives disconnect from their process manager
        there; a process that skips them counts as killed.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not _is_initialised(MPI) or abandoned.is_set():
        return False
    if not MPI.Is_finalized():
        MPI.Finalize()
    return bool(MPI.get_vendor()[0] != "Open MPI")


def settings_for_mpi(context: LaunchContext) -> dict[str, str]:
    """Variables to set before mpi4py is imported, without those that the user has set.

    * ``MPI4PY_LIBMPI``: mpi4py's wheels work with any MPI and load the virtual environment's, or else the first on
      the loader's path. Under the mpirun of another installation that gives N worlds of one rank each.
    * ``OMPI_MCA_btl``, ``OMPI_MCA_mtl`` on a single host without a fabric: otherwise Open MPI 5 spends a second
      of MPI_Init probing for one. (On several hosts all ranks must decide alike, so there it may probe.)
    """
    environment = context.environment
    settings = {}
    if not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & set(environment) and (library := library_of_launcher()):
        settings["MPI4PY_LIBMPI"] = library
    if context.on_one_host and context.launcher.without_fabric and not _has_fabric():
        unset = {name: value for name, value in context.launcher.without_fabric.items() if name not in environment}
        settings.update(unset)
    return settings


def library_of_launcher() -> str | None:
    """The MPI library that belongs to the launcher process above this one; None if unknown."""
    starter = launcher_process(names=RANK_STARTERS)
    program = executable(starter) if starter is not None else ""
    if not program:
        return None
    prefix = Path(program).parent.parent
    if prefix == Path("/usr"):  # a distribution puts its library on the loader's path, where the name is enough
        return "libmpich.so.12" if "hydra" in os.path.basename(program) else "libmpi.so.40"
    for folder in ("lib", "lib64", "lib/release"):
        for name in ("libmpi.so.40", "libmpi.so.12"):  # Open MPI; MPICH, Intel MPI and other derivatives of MPICH
            library = prefix / folder / name
            if library.is_file():
                return str(library)
    return None


def _has_fabric() -> bool:
    return any(glob(pattern) for pattern in _FABRICS)
