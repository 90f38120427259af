"""The meeting over MPI: one allgather of records, and an address of rank 0 that every host reaches."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from runner.environment import set_variables
from runner.errors import RefusedError, RendezvousError
from runner.launch.context import LaunchContext
from runner.rendezvous.door import Door
from runner.rendezvous.endpoint import Endpoint, listen
from runner.rendezvous.interfaces import interface_towards, own_addresses
from runner.rendezvous.mpi_library import library_of_launcher, settings_for_mpi
from runner.rendezvous.records import Records, flat, packed
from runner.rendezvous.topology import topology_of
from runner.rendezvous.visit import answers

if TYPE_CHECKING:
    from mpi4py import MPI

_PROBE_TIMEOUT = 3.0  # seconds to connect to one address of rank 0
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 5e-3  # seconds between two looks whether all ranks have come to their end


def mpi_is_possible(context: LaunchContext) -> tuple[bool, str]:
    """(whether MPI can be used to meet, why not)."""
    if not any(context.environment.get(name) for name in context.launcher.mpi):
        return False, f"{context.launcher.title} did not start this process as an MPI rank"
    if importlib.util.find_spec("mpi4py") is None:
        return False, "mpi4py is not installed"
    return True, ""


def load_mpi(context: LaunchContext) -> Any:
    """Import mpi4py, which initialises MPI, with the library of the mpirun that started this process.

    Raises:
        RendezvousError: no MPI library was found.
        RefusedError: the library found does not belong to the launcher.
    """
    set_variables(settings_for_mpi(context))
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # after an exception finalising waits for the others, for ever
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RendezvousError(
            f"mpi4py found no usable MPI library ({reason}); set MPI4PY_LIBMPI to the libmpi.so of your mpirun, "
            "or say --rendezvous file (one host) or hosts"
        ) from None
    world = MPI.COMM_WORLD
    if (world.size, world.rank) != (context.size.value, context.rank.value):
        version = MPI.Get_library_version().split(",")[0].strip().rstrip("\0")
        wanted = library_of_launcher() or "/path/of/your/mpirun's/lib/libmpi.so"
        raise RefusedError(
            f"{context.launcher.title} says rank {context.rank.value} of {context.size.value}, but MPI says rank "
            f"{world.rank} of {world.size}: mpi4py loaded {version}, which is not the library of the mpirun that "
            f"started this job; set MPI4PY_LIBMPI={wanted}",
            told_by_all=True,
        )
    _finalise_politely()
    return MPI


@functools.cache
def _finalise_politely() -> None:
    """Have this rank come to MPI_Finalize(), whoever calls it, when all ranks have.

    MPI_Finalize() waits for all ranks without a pause. Where ranks share a core that takes it from those that are not so
    far: seen with Intel MPI and Linux 6.18, eight ranks on two cores, where two of them did not run for minutes. Before it
    does anything it deletes the attributes of MPI_COMM_SELF, while all of MPI can still be used (MPI 3.1, 8.7.1).
    """
    from mpi4py import MPI

    def wait_for_all(*_: Any) -> None:
        nap, all_are_here = _SHORTEST_NAP, MPI.COMM_WORLD.Ibarrier()
        while not all_are_here.Test():
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=wait_for_all), True)


def threads_may_call() -> bool:
    """Whether the MPI that is loaded lets several threads call it at once."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is None or bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


# How MPIs say whether they take addresses of a GPU's memory (mpi-ext.h of Open MPI and of MPICH).
_QUESTIONS = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_hip_support")


def takes_gpu_memory() -> bool:
    """Whether the MPI that is loaded says that it does; one that has no word for it does not."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and _says_yes(MPI.__file__)


@functools.cache
def _says_yes(module: str) -> bool:
    library = ctypes.CDLL(module)  # with what it is linked to, the MPI
    return any(hasattr(library, question) and getattr(library, question)() for question in _QUESTIONS)


# Set where a thread is in an MPI call that will not end: finalising would wait for it, for ever.
abandoned = threading.Event()


def finalize_mpi() -> bool:
    """Finalise MPI, if this process has initialised it and nobody has finalised it.

    Returns:
        Whether the library has more to do in its C exit handlers. MPICH and its kin take leave of their process
        manager there; a process that skips them counts as killed.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or abandoned.is_set():
        return False
    if not MPI.Is_finalized():
        MPI.Finalize()
    return bool(MPI.get_vendor()[0] != "Open MPI")


def meet_by_mpi(context: LaunchContext, own: dict[str, Any]) -> tuple[Records, Endpoint]:
    """Exchange the records, and agree on an address of rank 0.

    Rank 0 hears every record once and tells all what differs between them, so that no rank holds, or handles, as many
    records as there are ranks. With it goes the job's key, which only MPI carries.

    Raises:
        RendezvousError: no address of rank 0 is reachable from every host.
    """
    world = load_mpi(context).COMM_WORLD
    listener, told = None, None
    gathered = world.gather(flat(own))
    if world.rank == 0:
        listener = listen(loopback=context.on_one_host)
        addresses = [] if context.on_one_host else own_addresses(context.environment)
        told = (packed(gathered), *listener.getsockname()[:2], addresses, os.urandom(32))
    everyone, host, port, addresses, key = world.bcast(told)
    records = Records.received(everyone)
    if not context.on_one_host:
        leaders = {host.ranks[0] for host in topology_of(records).hosts}
        host = _reachable_by_all(world, listener, port, addresses, key, leaders, records)
    interface = interface_towards(host)
    return records, Endpoint(host=host, port=port, interface=interface, way="mpi", key=key, listener=listener)


def _reachable_by_all(
    world: MPI.Intracomm,
    listener: socket.socket | None,
    port: int,
    addresses: list[tuple[str, str]],
    key: bytes,
    leaders: set[int],
    records: Records,
) -> str:
    """The first of rank 0's addresses that one rank of every host has connected to."""
    reached: list[str] | None = None
    if world.rank in leaders and world.rank != 0:
        reached = [address for _, address in addresses if _answers(address, port, key)]
    done = world.Ibarrier()
    if listener is not None:
        with Door(listener, key, world.size, largest=0) as door:
            while not done.Test():
                list(door.hear(0.005))  # nobody has anything to say: to be answered is enough
    done.Wait()
    reports = world.gather(reached)
    common, problem = world.bcast(None if reports is None else _judged(reports, addresses, records))
    if not common:
        raise RendezvousError(problem, told_by_all=True)
    return str(common)


def _judged(
    reports: list[list[str] | None], addresses: list[tuple[str, str]], records: Records
) -> tuple[str | None, str]:
    """(the address that all who tried have reached, what to say if there is none)."""
    common = [address for _, address in addresses if all(r is None or address in r for r in reports)]
    if common:
        return common[0], ""
    offered = ", ".join(f"{address} ({interface})" for interface, address in addresses) or "none"
    blind = [
        f"{records[rank]['host']} reached {', '.join(r) or 'none'}" for rank, r in enumerate(reports) if r is not None
    ]
    return None, (
        f"no address of rank 0's host {records[0]['host']} is reachable from every host; it offered {offered}; "
        f"{'; '.join(blind)}; open a path for TCP, or set MASTER_ADDR and MASTER_PORT"
    )


def _answers(address: str, port: int, key: bytes) -> bool:
    """Whether this job's rank 0 is what listens there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return answers(family, (address, port), key, _PROBE_TIMEOUT)
