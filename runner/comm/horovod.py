"""Horovod's start: by the job's MPI, or by its own gloo with the ranks that have met.

Started by horovodrun, or where MPI started the ranks, Horovod finds its way itself. Anywhere else (srun without PMI, torchrun,
one host without MPI) every process would take itself for the only one; so, as soon as a program imports it, rank 0 runs
Horovod's rendezvous server (horovod_server.py says whom it trusts) and all ranks get the variables that horovodrun would
have set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from runner.comm.importing import when_imported
from runner.comm.keeping import keep
from runner.environment import set_missing
from runner.errors import RefusedError, UsageError
from runner.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_MODULE = "horovod.torch"
_KEY = "horovod"  # under which the port of rank 0's server is in the job's store, and with a host's index its addresses
_HOW = "make horovod builds and installs it (python envs/build_horovod.py in another environment)"

_WITHOUT_CUDA = (
    "this Horovod was built without CUDA, and the job computes on GPUs; where a CUDA toolkit is (CUDA_HOME) make horovod "
    "builds it with NCCL"
)


def prepare_when_imported(job: Job) -> None:
    """Have ``hvd.init()`` find the other ranks in a program that is yet to import Horovod."""
    finds_them_itself = job.endpoint.way == "mpi" or "HOROVOD_RANK" in os.environ or job.size == 1
    if not finds_them_itself and find_spec("horovod") is not None:
        when_imported(_MODULE, lambda: _prepare(job))


def start_horovod(size: int, device: str) -> Any:
    """Import ``horovod.torch`` and initialise it. Returns the module.

    Args:
        size: how many ranks there are.
        device: the type of the device that they compute on, cpu or cuda.

    Raises:
        UsageError: it is not installed, does not load, or was built without the device.
        RefusedError: it sees another number of ranks.
    """
    if find_spec("horovod") is None:
        raise UsageError(f"Horovod is not installed; {_HOW}", told_by_all=True)
    try:
        import horovod.torch as hvd
    except Exception as error:  # a symbol that this torch has not, a library that is not there
        reason = " ".join(str(error).split())
        raise UsageError(f"Horovod does not load ({reason[:200]}); {_HOW}", told_by_all=True) from None
    if device == "cuda" and not (hvd.cuda_built() or hvd.rocm_built()):
        raise UsageError(f"{_WITHOUT_CUDA}; or say --device cpu", told_by_all=True)
    hvd.init()
    if hvd.size() != size:
        raise RefusedError(
            f"Horovod sees {hvd.size()} ranks, and there are {size}: it was built for another MPI; {_HOW}",
            told_by_all=True,
        )
    return hvd


def why_not_horovod(device: str) -> str:
    """Why Horovod cannot be used on a type of device; an empty string if it can. Loads it where that has to be asked."""
    if find_spec("horovod") is None:
        return "it is not installed: make horovod"
    if device == "cpu":
        return ""
    import horovod.torch as hvd

    return "" if hvd.cuda_built() or hvd.rocm_built() else _WITHOUT_CUDA


@contextmanager
def in_turn(hvd: Any) -> Iterator[None]:
    """Have Horovod run in here and not outside: its thread asks the other ranks every millisecond, and slows the others.

    Its gloo meets once only, so with that it goes on.
    """
    can_rest = os.environ.get("HOROVOD_CONTROLLER") != "gloo"
    if can_rest:
        hvd.init()
    try:
        yield
    finally:
        if can_rest:
            hvd.shutdown()


def _prepare(job: Job) -> None:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.util.network import get_local_host_addresses
    from torch._C._distributed_c10d import TCPStore

    from runner.comm.horovod_server import serve

    slots = []
    for rank, record in enumerate(job.topology.records):
        local = job.topology.local_rank(rank)
        beside = [host.ranks[local] for host in job.topology.hosts if local < len(host.ranks)]
        sizes = (job.size, job.topology.local_size(rank), len(beside))
        slots.append(SlotInfo(record["host"], rank, local, beside.index(rank), *sizes))
    timeout = timedelta(seconds=job.collective_timeout)
    store = TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=timeout)
    on_one_host = len(job.topology.hosts) == 1
    # Said before this rank knows where the server is, so that it is known there when this rank comes.
    store.set(f"{_KEY} {job.topology.host_index(job.rank)}", " ".join(get_local_host_addresses()))
    if job.rank == 0:
        server = serve(slots, on_one_host, members(store, len(job.topology.hosts)))
        keep(server)
        store.set(_KEY, str(server.server_port))
    own = slots[job.rank]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    values = {f"HOROVOD_{name.upper()}": value for name, value in vars(own).items()} | {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1" if on_one_host else job.endpoint.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": store.get(_KEY).decode(),
        "HOROVOD_GLOO_IFACE": interface or job.endpoint.interface,
    }
    set_missing({name: str(value) for name, value in values.items()})


def members(store: Store, hosts: int) -> Callable[[str], bool]:
    """Whether an address is one of the job's hosts', by what these have said in its store."""
    known: set[str] = set()
    silent = set(range(hosts))

    def is_member(address: str) -> bool:
        for host in tuple(silent) if address not in known else ():
            if store.check([f"{_KEY} {host}"]):
                known.update(store.get(f"{_KEY} {host}").decode().split())
                silent.discard(host)
        return address in known

    return is_member
