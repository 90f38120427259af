"""The backend mpi4py under a real mpirun: every operation, training, groups' ends, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.versions.torch_build import release_of, torch_build
from runner.versions.torch_private import takes_backend_in_python
from tests.launching import folder_of, mpirun, mpirun_path, ok, own_lines, path_of, run, runner, warnings_of
from tests.results import refused

pytestmark = pytest.mark.needs("mpi4py")

EVERYTHING, LATE = path_of("every_operation"), path_of("late_or_gone")


@pytest.mark.parametrize(("ranks", "end"), [(1, []), (3, ["leave"])])
def test_every_operation(ranks: int, end: list[str]) -> None:
    """The group is destroyed by the script; on four ranks it is left to the runner. (tests/cluster does it on two.)"""
    done = ok(runner(ranks, EVERYTHING, *end))
    assert done.stdout.count("checks") == ranks
    assert not warnings_of(done)


PRINTED = {
    "calls whose tensors do not fit together are refused": ("mismatched", 3, "rank {rank}: all were refused"),
    "ranks that a script gives in another order are obeyed": (
        "ranks_in_another_order",
        4,
        "MPI rank {rank}: all right",
    ),
    "callbacks and threads keep order and limits": ("callbacks_and_threads", 2, "rank {rank}: 2"),
}


@pytest.mark.parametrize(("program", "ranks", "line"), PRINTED.values(), ids=PRINTED)
def test_a_line_of_each_rank(program: str, ranks: int, line: str, tmp_path: Path) -> None:
    done = ok(runner(ranks, path_of(program), str(tmp_path)))
    assert sorted(done.stdout.splitlines()) == [line.format(rank=rank) for rank in range(ranks)]


def test_pytorchs_ways_to_be_parallel_run_on_it(tmp_path: Path) -> None:
    done = ok(runner(2, path_of("parallelisms"), "mpi4py", str(tmp_path)))
    # 2.9 sends an int64 where a float32 is received, which mpi4py refuses (_get_init_p2p_neighbors_ops).
    has_pipelines = release_of(torch_build().version) >= (2, 10)
    ways = ("ddp", "ddp with a hook", "fsdp2", "tensor parallel", "dtensor", "checkpoint")
    for what in (*ways, *(["pipeline"] if has_pipelines else [])):
        assert {f"rank {rank}: {what}" for rank in range(2)} <= set(done.stdout.splitlines())


def test_workloads_get_it_where_the_ranks_met_by_mpi() -> None:
    for options, backend in (([], "mpi4py"), (["--rendezvous", "file"], "gloo")):
        done = ok(runner(2, *options, "shows_its_settings", cwd=folder_of("shows_its_settings")))
        assert [line.split()[1] for line in done.stdout.splitlines()] == [backend] * 2


def test_a_script_that_asks_for_gloo_gets_it() -> None:
    limit = ["--collective-timeout", "600"]  # which is also set when the script imports torch
    done = ok(runner(2, *limit, "--backend", "mpi4py", path_of("backend_names"), "gloo", "none", "MPI", "cpu:mpi"))
    assert sorted(done.stdout.splitlines()) == ["rank 0: MPIBackend 2.0"] * 4 + ["rank 1: MPIBackend 2.0"] * 4
    code = Path(path_of("backend_names")).read_text()
    assert ok(runner(1, "--backend", "mpi4py", "-c", code, "gloo")).stdout == "rank 0: MPIBackend 1.0\n"
    assert ok(runner(1, path_of("backend_names"), "cpu:mpi4py")).stdout == "rank 0: MPIBackend 1.0\n"


def test_beside_another_backend_it_is_refused_where_torch_would_keep_one_only() -> None:
    done = runner(2, path_of("backend_names"), "cpu:mpi4py,cuda:nccl")
    told = "torch before 2.14 cannot combine mpi4py with another"
    assert (told in done.stderr) == (not takes_backend_in_python())


def test_a_script_that_asks_for_mpi_gets_it_where_torch_has_none() -> None:
    done = ok(runner(2, path_of("backend_names"), "mpi", "none"))
    assert sorted(done.stdout.splitlines()) == [
        f"rank {rank}: {name} 2.0" for rank in range(2) for name in ("MPIBackend", "ProcessGroupGloo")
    ]
    done = runner(2, "--rendezvous", "file", path_of("backend_names"), "mpi")
    assert "doesn't have MPI built in" in done.stderr


def test_ranks_that_wait_for_a_late_one_are_told() -> None:
    done = runner(2, path_of("waits_for_a_late_rank"))
    assert done.returncode == 1
    late = "all_reduce: Timed out waiting 2000ms for rank 1;"
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(told) == ["call", "work", "future", "group"]
    assert all(late in told[how] for how in ("call", "work", "future"))
    assert "rank 1 did not come to make a group of 2" in told["group"]
    (line,) = own_lines(done)
    assert line.startswith("runner: rank 0 of 2 on host")
    assert late in line


def test_a_monitored_barrier_names_who_is_missing() -> None:
    done = runner(4, path_of("monitored_barrier"))
    assert done.returncode == 1
    first = next(line for line in done.stdout.splitlines() if line.startswith("rank 0: "))
    assert "Rank 1 failed to pass monitoredBarrier within 1 s" in first
    assert "rank 0 of 4" in own_lines(done)[0]
    assert "Ranks 1, 2 failed to pass monitoredBarrier within 4 s" in own_lines(done)[0]


def test_a_group_that_has_failed_can_be_destroyed_and_the_job_ends() -> None:
    """Its call is still open in MPI: nobody waits for that, and the program that has caught the error ends well."""
    done = ok(runner(2, LATE, "destroys"))
    assert done.stdout == "continued\n"


def test_with_torchs_debugging_another_rank_s_call_is_no_partner() -> None:
    done = runner(2, LATE, "another-call", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    if not takes_backend_in_python():  # and so torch does not see the calls
        assert "TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare the calls of backend mpi4py" in done.stderr
        return
    assert done.returncode == 1
    assert "Detected mismatch between collectives on ranks" in own_lines(done)[0]
    assert "BROADCAST" in done.stderr
    assert "ALLREDUCE" in done.stderr


def test_a_rank_that_has_done_its_part_may_leave() -> None:
    """Nor do those who wait take it for one that has left because all have left a group of the same name before."""
    assert ok(runner(3, LATE, "done-before")).stdout.splitlines() == ["gathered"] * 3


def test_all_calls_of_a_group_fail_when_one_does() -> None:
    done = ok(runner(2, LATE, "all-calls-fail"))
    assert done.stdout.splitlines() == ["True"] * 4 + ["True False"]


def test_a_late_rank_does_not_join_a_blocking_call_that_was_given_up() -> None:
    done = ok(runner(2, LATE, "blocking"))
    assert set(done.stdout.splitlines()) <= {"all_reduce: Timed out waiting 200", "all_reduce: rank 0 has left the g"}
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(("ranks", "how"), [(3, "gone"), (2, "gone-from-its-group")])
def test_a_rank_that_leaves_is_named_to_those_who_wait_for_it(ranks: int, how: str) -> None:
    """In seconds, where the limit of the call is half an hour."""
    done = runner(ranks, LATE, how)
    assert done.returncode == 1
    assert "all_reduce: rank 1 has left the group while this rank waits" in done.stderr


@pytest.mark.parametrize("transport", ["", "tcp,self"], ids=["shared memory", "TCP"])
def test_messages(transport: str) -> None:
    """Where a sender is outside of MPI, nothing but the engine's thread moves a large message on over TCP."""
    environment = {"OMPI_MCA_btl": transport, "OMPI_MCA_pml": "ob1"} if transport else {}
    done = ok(runner(3, path_of("messages"), **environment))
    assert sorted(done.stdout.splitlines()) == [
        *("from [1, 1, 2, 2]", "rank 0: 4000 messages", "rank 0: 5.0 at the second try", "rank 0: answered"),
        *("rank 1: 4000 messages", "rank 1: received", "rank 2: 4000 messages"),
    ]


def test_it_is_refused_where_there_is_no_mpi(tmp_path: Path) -> None:
    done = runner(2, "--rendezvous", "file", "workloads.linear", "--backend", "mpi4py", cwd=tmp_path)
    refused(done, "--backend mpi4py: ")
    done = runner(2, "--rendezvous", "file", "--backend", "mpi4py", path_of("ddp_training"))
    refused(done, "runner: --backend mpi4py: ")


def test_the_mpi_is_asked_whether_it_takes_gpu_memory() -> None:
    """Open MPI's own program says what it was built with; without that it takes none."""
    ompi_info = str(Path(mpirun_path()).with_name("ompi_info"))
    built = run(ompi_info, "--parsable", "--all").stdout
    asks = "from mpi4py import MPI\nfrom runner.rendezvous.methods.mpi_library import *\nprint(takes_gpu_memory())"
    answer = ok(mpirun(1, sys.executable, "-c", asks)).stdout.strip()
    assert answer == "False" or "mpi_built_with_cuda_support:value:true" in built


@pytest.mark.parametrize(("vendor", "where"), [("Open MPI", "host"), ("MPICH", "device")])
def test_where_gpu_memory_is_reduced(vendor: str, where: str) -> None:
    """Open MPI's non-blocking reductions crash on GPU memory, even if it takes that elsewhere."""
    done = ok(mpirun(1, sys.executable, path_of("reduces_gpu_memory"), vendor))
    calls = ("Iallreduce", "Ireduce", "Ireduce_scatter", "Ireduce_scatter_block")
    assert done.stdout.splitlines() == [
        *(f"{call} {where}" for call in calls),
        *("Ibcast device", "Iallgather device", "all right"),
    ]
