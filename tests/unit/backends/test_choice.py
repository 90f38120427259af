"""What is decided for a job once its ranks have met: the backend, and the threads beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.backends.process_group import with_host_memory
from runner.backends.registry import backends
from runner.backends.selection import with_backend, with_spare_cores
from runner.hardware.placement import Placement
from runner.job import Job
from runner.launch.detect import detect
from runner.parallel.mesh import Degrees, lay_out
from runner.parallel.settings import ParallelSettings
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import Host, Topology
from runner.rendezvous.transport.endpoint import Endpoint
from runner.tools.explain.explain import facts_of
from runner.torchrun.variables import settings


def job(*, threads: int, source: str = "8 cores ÷ 1 rank on them", way: str = "mpi", torch: str = "2.14.0") -> Job:
    """Two ranks on one host, on CPUs."""
    record = RankRecord(host="node1", pid=1, runner="1", python="3.11", torch=torch, resources={"gpus": []})
    placement = Placement(device="cpu", device_index=None, cores=8, threads=threads, threads_source=source)
    return Job(
        context=detect({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}),
        topology=Topology((Host("node1", (0, 1)),), Records.of([record] * 2)),
        endpoint=Endpoint(host="127.0.0.1", port=1234, interface="lo", way=way),
        rendezvous_why="no MPI",
        placements=(placement, placement),
    )


@pytest.mark.parametrize(
    ("threads", "source", "way", "left"),
    [
        (8, "8 cores ÷ 1 rank on them", "mpi", 7),
        (2, "2 cores ÷ 1 rank on them", "mpi", 2),
        (8, "8 cores ÷ 1 rank on them", "file", 8),
        (8, "OMP_NUM_THREADS", "mpi", 8),
    ],
)
def test_explain_shows_the_threads_that_a_workload_gets(threads: int, source: str, way: str, left: int) -> None:
    decided = with_spare_cores(with_backend(job(threads=threads, source=source, way=way), "auto"))
    facts = facts_of(decided, lay_out(decided.topology, Degrees.of(decided.size)), ParallelSettings())
    assert facts["settings"]["OMP_NUM_THREADS"] == settings(decided)["OMP_NUM_THREADS"] == str(left)
    assert [rank["threads"] for rank in facts["ranks"]] == [left, left]
    assert ("less one for mpi4py's thread" in facts["ranks"][0]["threads_source"]) == (left < threads)


@pytest.mark.parametrize(
    ("wanted", "changes", "backend", "why"),
    [
        ("auto", {}, "mpi4py", "by the MPI that started the job"),
        ("auto", {"way": "file"}, "gloo", "mpi4py is faster, but the ranks did not meet by MPI (no MPI)"),
        ("auto", {"torch": "2.8.0"}, "gloo", "mpi4py is faster, but it needs torch 2.9 or newer, and this is 2.8.0"),
        ("auto", {"torch": "2.9.1+cpu"}, "mpi4py", "by the MPI that started the job"),
        ("auto", {"torch": "2.15.0+cu132"}, "mpi4py", "by the MPI that started the job"),
        ("auto", {"torch": "2.16.0.dev20270101"}, "gloo", "not tried with torch 2.16.0.dev20270101 (with 2.15 it was)"),
        ("auto", {"torch": "3.0.0"}, "gloo", "take it by --backend mpi4py"),
        ("mpi4py", {"torch": "2.16.0"}, "mpi4py", "as asked for"),
        ("gloo", {}, "gloo", "as asked for"),
        ("mpi4py", {"way": "file"}, "mpi4py", "as asked for"),  # to be refused where it is used
    ],
)
def test_the_backend_on_cpus(wanted: str, changes: dict[str, str], backend: str, why: str) -> None:
    chosen = with_backend(job(threads=1, **changes), wanted)
    assert chosen.backend == backend
    assert why in chosen.backend_why


def on_gpus(device: str) -> Job:
    on_cpus = job(threads=1)
    return replace(on_cpus, placements=(replace(on_cpus.placement, device=device, device_index=0),) * 2)


def test_the_backend_on_gpus() -> None:
    chosen = with_backend(on_gpus("cuda"), "auto")
    assert (chosen.backend, chosen.backend_why) == ("nccl", "for GPUs")
    assert "through pinned memory of the host" in with_backend(on_gpus("cuda"), "mpi4py").backend_why
    assert with_backend(on_gpus("xpu"), "auto").backend == "xccl"
    assert with_host_memory("xccl") == "cpu:gloo,xpu:xccl"
    for backend, there, why in (
        ("mpi4py", on_gpus("xpu"), "Intel"),
        ("nccl", on_gpus("xpu"), "no GPU is used"),
        ("xccl", job(threads=1), "Intel"),
    ):
        assert why in backends()[backend].unavailable_reason(there)
