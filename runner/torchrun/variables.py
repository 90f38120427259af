"""The variables that torchrun sets for its workers, made for a job of any launcher."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile

from runner.job import Job
from runner.rendezvous.transport.interfaces import share_a_network
from runner.torchrun.compile_caches import cache_variables
from runner.torchrun.served_store import IS_SERVED
from runner.versions.torch_api import RECORDER


def settings(job: Job) -> dict[str, str]:
    """Variables for every target: the number of threads, the interface for the backends' own connections, the compilers' caches, and that
    calls are recorded.

    Those that the user has set are left out. NCCL sends data by all interfaces that it finds, so it is held to one only where
    that by which it would start does not lead to the other hosts.
    """
    users = dict(job.context.environment)
    wanted = {"OMP_NUM_THREADS": str(job.placement.threads)}
    interface = job.endpoint.interface
    if interface:
        wanted["GLOO_SOCKET_IFNAME"] = interface
        if not _nccl_starts_by(interface, job):
            wanted["NCCL_SOCKET_IFNAME"] = f"={interface}"  # "=": this exact name, not a prefix
    if not users.get("TORCH_NCCL_TRACE_BUFFER_SIZE"):  # the same by its older name
        wanted |= RECORDER
    wanted |= cache_variables(users)
    if job.placement.threads_source != "OMP_NUM_THREADS":
        users.pop("OMP_NUM_THREADS", None)  # if set, it is not a number of threads
    return {name: value for name, value in wanted.items() if not users.get(name)}


def _nccl_starts_by(interface: str, job: Job) -> bool:
    """Whether NCCL's own choice is this interface, which leads to rank 0, or one by which all hosts reach one another."""
    found = job.topology.records.column("nccl_interface")
    if len(job.topology.hosts) == 1 or interface in found[job.rank][:1]:
        return True
    return share_a_network([found[host.ranks[0]] for host in job.topology.hosts])


def torchrun_variables(job: Job) -> dict[str, str]:
    """torchrun's variables (docs: elastic/run, Environment Variables). Under torchrun its own are kept.

    But ranks that torchrun has started again get those of the runner's store.
    """
    if job.context.has_fresh_store:
        return {}
    store = {
        "MASTER_ADDR": job.endpoint.host,
        "MASTER_PORT": str(job.endpoint.port),
        # The runner serves the store already, so init_process_group() on rank 0 joins it like the others (served_store.py).
        IS_SERVED: "1",
    }
    if job.context.launcher.has_store:
        return store
    local_rank, local_size = job.local_rank, job.topology.local_size(job.rank)
    group, groups = job.topology.host_index(job.rank), len(job.topology.hosts)
    if _have_gpus_of_their_own(job):
        # Scripts use LOCAL_RANK as the device's index, so every rank becomes a group of one worker, as if torchrun
        # had been started once per task.
        local_rank, local_size = job.placement.device_index or 0, 1
        group, groups = job.rank, job.size
    first = job.topology.records[0]
    run_id = hashlib.sha256(f"{first.host_key}/{first.pid}/{job.endpoint.port}".encode()).hexdigest()[:16]
    values = {
        "RANK": job.rank,
        "WORLD_SIZE": job.size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": group,
        "GROUP_WORLD_SIZE": groups,
        "ROLE_RANK": job.rank,
        "ROLE_WORLD_SIZE": job.size,
        "TORCHELASTIC_RESTART_COUNT": job.context.attempt,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        # Where torch's @record writes an exception.
        "TORCHELASTIC_ERROR_FILE": os.path.join(tempfile.gettempdir(), f"torchelastic_{secrets.token_hex(8)}.json"),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": job.context.environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return {name: str(value) for name, value in values.items()} | store


def accelerate_variables(job: Job) -> dict[str, str]:
    """Without them Hugging Face's Accelerate (1.15) trains on each rank alone where ranks compute on CPUs, under torchrun, too."""
    is_on_cpus = job.size > 1 and job.placement.torch_device == "cpu"
    return {"ACCELERATE_USE_CPU": "1"} if is_on_cpus else {}


def _have_gpus_of_their_own(job: Job) -> bool:
    """Whether some rank's device index is not its local rank; the same answer on all ranks."""
    indices = [placement.device_index for placement in job.placements]
    return any(index is not None and index != job.topology.local_rank(rank) for rank, index in enumerate(indices))
