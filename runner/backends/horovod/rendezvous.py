"""How Horovod's ranks find one another: by the job's MPI, or by Horovod's gloo controller.

Under horovodrun, or if MPI started the ranks, Horovod finds the ranks itself. Anywhere else (srun without PMI, torchrun,
one host without MPI) every process would take itself for the only rank. So, as soon as a program imports Horovod, rank 0
runs Horovod's rendezvous server (server.py says whom it trusts), and all ranks get the variables that horovodrun would set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from runner.base.environment import set_missing
from runner.job import Job
from runner.torchrun.own_modules import own_module
from runner.torchrun.store import kept
from runner.versions import torch_private

if TYPE_CHECKING:
    from runner.versions.torch_private import Store

_KEY = "horovod"  # in the job's store: the port of rank 0's server; followed by a host's index: that host's addresses


def finds_ranks_itself(job: Job) -> bool:
    """Whether ``hvd.init()`` needs no help to find the other ranks."""
    return job.endpoint.way == "mpi" or "HOROVOD_RANK" in os.environ or job.size == 1


def prepare_rendezvous(job: Job) -> None:
    """Serve Horovod's rendezvous on rank 0, and set this rank's variables for it. Needs the job's store, and Horovod."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.util.network import get_local_host_addresses

    slots = []
    for rank, record in enumerate(job.topology.records):
        local = job.topology.local_rank(rank)
        beside = [host.ranks[local] for host in job.topology.hosts if local < len(host.ranks)]
        sizes = (job.size, job.topology.local_size(rank), len(beside))
        slots.append(SlotInfo(record.host, rank, local, beside.index(rank), *sizes))
    timeout = timedelta(seconds=job.collective_timeout)
    store = torch_private.TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=timeout)
    on_one_host = len(job.topology.records.of_field("host_key")[0]) == 1  # and in one network
    # Before this rank reads the server's port, so that the server knows this host's addresses when it connects.
    store.set(f"{_KEY} {job.topology.host_index(job.rank)}", " ".join(get_local_host_addresses()))
    if job.rank == 0:
        is_member = members(store, len(job.topology.hosts))
        server = own_module("runner.backends.horovod.server").serve(slots, on_one_host, is_member)
        kept.append(server)
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
    """A function that says whether an address belongs to one of the job's hosts, as these have written in its store."""
    known: set[str] = set()
    silent = set(range(hosts))

    def is_member(address: str) -> bool:
        for host in tuple(silent) if address not in known else ():
            if store.check([f"{_KEY} {host}"]):
                known.update(store.get(f"{_KEY} {host}").decode().split())
                silent.discard(host)
        return address in known

    return is_member
