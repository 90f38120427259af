"""The meeting over MPI: one allgather of records, and an address of rank 0 that every host reaches."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import select
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from runner.errors import RefusedError, RendezvousError
from runner.launch.context import LaunchContext
from runner.rendezvous.endpoint import Endpoint, listen
from runner.rendezvous.interfaces import interface_towards, own_addresses
from runner.rendezvous.mpi_library import library_of_launcher, settings_for_mpi
from runner.rendezvous.topology import topology_of

if TYPE_CHECKING:
    from mpi4py import MPI

_PROBE_TIMEOUT = 3.0  # seconds to connect to one address of rank 0


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
    os.environ.update(settings_for_mpi(context))
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
    return MPI


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


def meet_by_mpi(context: LaunchContext, own: dict[str, Any]) -> tuple[list[dict[str, Any]], Endpoint]:
    """Exchange the records, and agree on an address of rank 0.

    Raises:
        RendezvousError: no address of rank 0 is reachable from every host.
    """
    world = load_mpi(context).COMM_WORLD
    listener, offer = None, None
    if world.rank == 0:
        listener = listen(loopback=context.on_one_host)
        addresses = [] if context.on_one_host else own_addresses(context.environment)
        offer = (*listener.getsockname()[:2], addresses)
    gathered = world.allgather((own, offer))
    records = [record for record, _ in gathered]
    host, port, addresses = gathered[0][1]
    if not context.on_one_host:
        leaders = {host.ranks[0] for host in topology_of(records).hosts}
        host = _reachable_by_all(world, listener, port, addresses, leaders, records)
    interface = interface_towards(host)
    return records, Endpoint(host=host, port=port, interface=interface, way="mpi", listener=listener)


def _reachable_by_all(
    world: MPI.Intracomm,
    listener: socket.socket | None,
    port: int,
    addresses: list[tuple[str, str]],
    leaders: set[int],
    records: list[dict[str, Any]],
) -> str:
    """The first of rank 0's addresses that one rank of every host has connected to."""
    token = os.urandom(16) if world.rank == 0 else None
    token = world.bcast(token)
    reached: list[str] | None = None
    if world.rank in leaders and world.rank != 0:
        reached = [address for _, address in addresses if _answers(address, port, token)]
    done = world.Ibarrier()
    if listener is not None:
        _greet_until(listener, token, done)
    done.Wait()
    everyone = world.allgather(reached)
    common = [address for _, address in addresses if all(r is None or address in r for r in everyone)]
    if not common:
        offered = ", ".join(f"{address} ({interface})" for interface, address in addresses) or "none"
        blind = [
            f"{records[rank]['host']} reached {', '.join(r) or 'none'}"
            for rank, r in enumerate(everyone)
            if r is not None
        ]
        raise RendezvousError(
            f"no address of rank 0's host {records[0]['host']} is reachable from every host; it offered {offered}; "
            f"{'; '.join(blind)}; open a path for TCP, or set MASTER_ADDR and MASTER_PORT",
            told_by_all=True,
        )
    return common[0]


def _answers(address: str, port: int, token: bytes) -> bool:
    """Whether this job's rank 0 is what listens there."""
    try:
        with socket.create_connection((address, port), timeout=_PROBE_TIMEOUT) as connection:
            return connection.recv(len(token), socket.MSG_WAITALL) == token
    except OSError:
        return False


def _greet_until(listener: socket.socket, token: bytes, done: MPI.Request) -> None:
    """Say the token to all who connect, until every rank has finished probing."""
    listener.setblocking(False)
    while not done.Test():
        ready, _, _ = select.select([listener], [], [], 0.005)
        if ready:
            connection, _ = listener.accept()
            connection.settimeout(1.0)
            with connection:
                connection.send(token)
    listener.setblocking(True)
