"""The network that each backend takes between hosts: where its bytes go, and what NCCL says of its choice."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from runner.backends.fabric import fast_networks, nccl_network, slow_choice
from runner.job import Job
from runner.tools.doctor.examine import CheckFunction, Team, Verdict, ok, warn, where

_BYTES, _TIMES = 4 << 20, 8  # of each exchange
_SHARE = 0.5  # of the bytes that hosts must exchange: a device that has carried fewer is not the backend's
# Devices by which messages pass Linux's network, and what they are.
_BYPASSES = {"/dev/infiniband/uverbs": "verbs", "/dev/cxi": "Slingshot", "/dev/hfi1": "Omni-Path"}


def fabric_by(log: Path | None) -> CheckFunction:
    """Return the check of the networks that backends take.

    Args:
        log: the file into which NCCL writes in this process; None if its log is the user's.
    """
    return partial(_fabric, log)


def _fabric(log: Path | None, job: Job, team: Team) -> Verdict:
    """Exchange data between hosts by each backend that this job can use, and find the device that has carried it."""
    import torch.distributed as dist

    fast = fast_networks()
    found: dict[str, list[str]] = {}
    if len(job.topology.hosts) > 1:
        if dist.is_initialized():
            found[dist.get_backend()] = _carriers(_by_torch(job))
        if job.endpoint.way == "mpi":
            found["MPI"] = _carriers(_by_mpi())
    network = nccl_network(log.read_text(errors="replace")) if log else None
    everyone = team.gather(
        {
            "carriers": found,
            "fast": fast,
            "nccl": str(network or ""),
            "slow": slow_choice(network, fast) if network else "",
        }
    )
    if len(job.topology.hosts) == 1:
        return ok("one host: messages stay in its memory")
    texts = [one["nccl"] for one in everyone[:1] if one["nccl"]]
    for backend in everyone[0]["carriers"]:
        devices = sorted({device for one in everyone for device in one["carriers"].get(backend, ())})
        texts.append(f"{backend} by {', '.join(devices) or 'no network that Linux counts (shared memory, or RDMA)'}")
    text = "; ".join(texts)
    for rank, one in enumerate(everyone):
        if one["slow"]:
            return warn(
                f"{text}; on {where([rank], job.topology)} {one['slow'].partition('; ')[0]}",
                one["slow"].partition("; ")[2],
            )
        if tcp := [name for name, devices in one["carriers"].items() if one["fast"] and _is_tcp(devices)]:
            return warn(
                f"{text}; {' and '.join(tcp)} used TCP on {where([rank], job.topology)}, which has {', '.join(one['fast'])}",
                "for MPI, load the MPI that the site has built for its network, and look at its variables for transports (UCX_TLS, FI_PROVIDER, "
                "OMPI_MCA_pml)",
            )
    return ok(text)


def _is_tcp(devices: list[str]) -> bool:
    return any(device.endswith("(TCP)") for device in devices)


def _by_torch(job: Job) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    data = torch.ones(_BYTES // 4, device=job.placement.torch_device)

    def exchange() -> None:
        dist.all_reduce(data)
        data[0].item()  # on a GPU: wait

    return exchange


def _by_mpi() -> Callable[[], object]:
    import numpy
    from mpi4py import MPI

    data, result = numpy.ones(_BYTES // 4, "f4"), numpy.empty(_BYTES // 4, "f4")
    return lambda: MPI.COMM_WORLD.Allreduce(data, result)


def _carriers(exchange: Callable[[], object]) -> list[str]:
    """Exchange several times, and return the devices of this host that have carried it."""
    exchange()  # which connects
    before = _counters()
    for _ in range(_TIMES):
        exchange()
    time.sleep(0.05)  # until the last bytes are counted
    after = _counters()
    carried = {name: after[name] - before.get(name, 0) for name in after}
    found = [name for name, count in carried.items() if count > _SHARE * _BYTES * _TIMES / 2]
    return found or sorted(_bypasses())


def _counters() -> Mapping[str, int]:
    """The bytes that each device has sent: of interfaces (man 5 proc, net/dev), and of InfiniBand's ports, which count 4 bytes as one."""
    import psutil

    found = {
        f"{name} (TCP)": counts.bytes_sent
        for name, counts in psutil.net_io_counters(pernic=True).items()
        if name != "lo"
    }
    for port in glob.glob("/sys/class/infiniband/*/ports/*"):
        device = Path(port).parts[-3]
        try:
            found[device] = found.get(device, 0) + 4 * int((Path(port) / "counters/port_xmit_data").read_text())
        except (OSError, ValueError):
            continue
    return found


def _bypasses() -> set[str]:
    """The devices open in this process that pass Linux's network by."""
    found = set[str]()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        found |= {f"{kind} ({target})" for prefix, kind in _BYPASSES.items() if target.startswith(prefix)}
    return found
