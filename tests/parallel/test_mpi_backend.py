"""The backend mpi4py under a real mpirun: every operation, training, groups' ends, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launching import RUNNER, SCRIPTS, mpirun, mpirun_path, ok, own_lines, run, runner, torchrun
from tests.results import losses

EVERYTHING = str(SCRIPTS / "every_operation.py")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_operation(ranks: int) -> None:
    done = ok(runner(ranks, EVERYTHING))
    assert done.stdout.count("checks") == ranks
    assert done.stderr == ""


def test_a_group_that_is_never_destroyed_ends_in_order() -> None:
    done = ok(runner(2, EVERYTHING, "leave"))
    assert done.stderr == ""


def test_ranks_that_a_script_gives_in_another_order_are_obeyed(tmp_path: Path) -> None:
    done = ok(runner(4, str(SCRIPTS / "ranks_in_another_order.py"), str(tmp_path)))
    assert sorted(done.stdout.splitlines()) == [f"MPI rank {rank}: all right" for rank in range(4)]


def test_callbacks_and_threads_keep_order_and_limits() -> None:
    done = ok(runner(2, str(SCRIPTS / "callbacks_and_threads.py")))
    assert sorted(done.stdout.splitlines()) == ["rank 0: 2", "rank 1: 2"]


def test_pytorchs_ways_to_be_parallel_run_on_it(tmp_path: Path) -> None:
    done = ok(runner(2, str(SCRIPTS / "parallelisms.py"), "mpi4py", str(tmp_path)))
    for what in ("ddp", "ddp with a hook", "fsdp2", "tensor parallel", "dtensor", "checkpoint", "pipeline"):
        assert {f"rank {rank}: {what}" for rank in range(2)} <= set(done.stdout.splitlines())


def test_training_gives_what_gloo_gives(tmp_path: Path) -> None:
    for backend in ("gloo", "mpi4py"):
        options = ["--data", "digits", "--max-steps", "30", "--dtype", "float64", "--backend", backend]
        ok(runner(2, "workloads.mnist", *options, "--checkpoint-dir", str(tmp_path / backend)))
    assert losses(tmp_path / "mpi4py") == pytest.approx(losses(tmp_path / "gloo"), rel=1e-9)


def test_workloads_get_it_where_the_ranks_met_by_mpi(tmp_path: Path) -> None:
    (tmp_path / "which.py").write_text(
        "import torch.distributed as dist\ndef main(run, argv): run.say(dist.get_backend())\n"
    )
    for options, backend in (([], "mpi4py"), (["--rendezvous", "file"], "gloo"), (["--backend", "gloo"], "gloo")):
        assert ok(runner(2, *options, "which", cwd=tmp_path)).stdout == f"{backend}\n"


def test_a_script_that_asks_for_gloo_gets_it() -> None:
    done = ok(runner(2, "--replace-backend", "gloo=mpi4py", str(SCRIPTS / "backend_names.py"), "gloo"))
    assert sorted(done.stdout.splitlines()) == ["rank 0: mpi4py 2.0", "rank 1: mpi4py 2.0"]
    done = ok(runner(2, str(SCRIPTS / "backend_names.py"), "cpu:mpi4py"))
    assert sorted(done.stdout.splitlines()) == ["rank 0: mpi4py 2.0", "rank 1: mpi4py 2.0"]


def test_a_call_that_a_rank_leaves_out_ends_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=2))\n"
        "if dist.get_rank() == 1: time.sleep(60)\n"
        "dist.all_reduce(torch.ones(4))\n"
    )
    done = runner(2, "late.py", cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    (line,) = own_lines(done)
    assert "rank 0 of 2 on host" in line
    assert "all_reduce: Timed out waiting 2000ms for rank 1;" in line


def test_waiting_for_a_call_that_a_rank_leaves_out_ends_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=2))\n"
        "if dist.get_rank() == 1: time.sleep(60)\n"
        "dist.all_reduce(torch.ones(4), async_op=True).wait()\n"
    )
    done = runner(2, "late.py", cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    (line,) = own_lines(done)
    assert "rank 0 of 2 on host" in line
    assert "all_reduce: Timed out waiting 2000ms for rank 1;" in line


@pytest.mark.parametrize(("all_ranks", "named"), [(False, "Rank 1"), (True, "Ranks 1, 2")])
def test_a_monitored_barrier_names_who_is_missing(tmp_path: Path, all_ranks: bool, named: str) -> None:
    (tmp_path / "missing.py").write_text(
        "import time, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py')\n"
        "dist.monitored_barrier()\n"
        "if dist.get_rank() in (1, 2): time.sleep(60)\n"
        f"dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks={all_ranks})\n"
    )
    done = runner(4, "missing.py", cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert "rank 0 of 4" in own_lines(done)[0]
    assert f"{named} failed to pass monitoredBarrier within 2 s" in own_lines(done)[0]


MODEL = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))"


@pytest.mark.parametrize(
    ("before", "late", "said"),
    [
        (
            "",
            "dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()",
            "all_reduce: Timed out waiting 2000ms for rank 1;",
        ),
        (
            f"{MODEL}; loss = model(torch.ones(1, 2)).sum()",
            "loss.backward()",
            "all_reduce: Timed out waiting 2000ms for rank 1;",
        ),
        (
            "",
            "dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))",
            "rank 1 did not come to make a group of 2",
        ),
    ],
    ids=["a future", "DDP in C++", "a group"],
)
def test_ranks_that_wait_for_a_late_one_are_told(tmp_path: Path, before: str, late: str, said: str) -> None:
    (tmp_path / "late.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        f"dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=2))\n{before}\n"
        f"if dist.get_rank() == 1: time.sleep(60)\n{late}\nprint('went on')\n"
    )
    done = runner(2, "late.py", cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = own_lines(done)
    assert line.startswith("runner: rank 0 of 2 on host")
    assert said in line


def test_a_group_that_has_failed_can_be_destroyed_and_the_job_ends(tmp_path: Path) -> None:
    """Its call is still open in MPI: nobody waits for that, and the program that has caught the error ends well."""
    (tmp_path / "caught.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=1))\n"
        "if dist.get_rank() == 1: time.sleep(4)\n"
        "try: dist.all_reduce(torch.ones(4), async_op=True).wait()\n"
        "except dist.DistBackendError: dist.destroy_process_group(); print('went on')\n"
    )
    done = runner(2, "caught.py", cwd=tmp_path, timeout=40)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_rank_that_has_done_its_part_may_leave(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(
        "import sys, time, torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py')\nrank = dist.get_rank()\n"
        "if rank == 2: time.sleep(8)\n"
        "dist.gather(torch.full((2,), float(rank)), [torch.empty(2) for _ in range(3)] if rank == 0 else None)\n"
        "print('gathered')\n"
    )
    assert ok(runner(3, "early.py", cwd=tmp_path)).stdout.splitlines() == ["gathered"] * 3


def test_all_calls_of_a_group_fail_when_one_does(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=2))\n"
        "if dist.get_rank() == 1: time.sleep(6)\n"
        "else:\n"
        "    first = dist.all_reduce(torch.ones(4096), async_op=True)\n"
        "    future = first.get_future()\n"
        "    for wait in (lambda: dist.all_reduce(torch.ones(4)), future.wait, first.wait, dist.barrier):\n"
        "        try: wait()\n"
        "        except RuntimeError as error: print('Timed out waiting 2000ms for rank 1' in str(error))\n"
        "    print(first.is_completed(), first.is_success())\n"
    )
    done = ok(runner(2, "both.py", cwd=tmp_path))
    assert done.stdout.splitlines() == ["True"] * 4 + ["True False"]


def test_a_late_rank_does_not_join_a_blocking_call_that_was_given_up(tmp_path: Path) -> None:
    (tmp_path / "vote.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py', timeout=datetime.timedelta(seconds=2))\n"
        "if dist.get_rank() == 1: time.sleep(4)\n"
        "try: dist.all_reduce(torch.ones(1 << 20))\n"
        "except dist.DistBackendError as error: print(str(error)[:33])\n"
    )
    done = ok(runner(2, "vote.py", cwd=tmp_path))
    assert set(done.stdout.splitlines()) <= {"all_reduce: Timed out waiting 200", "all_reduce: rank 0 has left the g"}
    assert len(done.stdout.splitlines()) == 2


def test_inference_tensors_are_gathered_in_whatever_thread(tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(
        "import time, torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py')\n"
        "with torch.inference_mode():\n"
        "    parts = [torch.empty(4) for _ in range(2)]\n"
        "    works = [dist.all_gather(parts, torch.ones(4), async_op=True)]\n"
        "    total = torch.ones(4, dtype=torch.bfloat16)\n"
        "    works += [dist.all_reduce(total, async_op=True)]\n"
        "    for work in works: work.get_future().wait()\n"
        "print(parts[1].sum().item(), total.sum().item())\n"
    )
    assert ok(runner(2, "inference.py", cwd=tmp_path)).stdout.splitlines() == ["4.0 8.0"] * 2


def test_a_call_goes_on_when_a_wait_for_it_has_been_given_up(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(
        "import time, torch, datetime\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py')\n"
        "if dist.get_rank() == 1: time.sleep(4)\n"
        "total = torch.ones(4)\n"
        "work = dist.all_reduce(total, async_op=True)\n"
        "if dist.get_rank() == 0:\n"
        "    try: work.wait(datetime.timedelta(seconds=1))\n"
        "    except dist.DistBackendError as error: print(error)\n"
        "work.wait()\n"
        "assert work.is_completed() and work.is_success()\n"
        "print('sum', total[0].item())\n"
    )
    done = ok(runner(2, "patient.py", cwd=tmp_path))
    assert sorted(done.stdout.splitlines())[1:] == ["sum 2.0", "sum 2.0"]
    assert "all_reduce: Timed out waiting 1000ms for rank 1" in done.stdout


ENDS = {"returns": "sys.exit(0)", "leaves the group": "dist.destroy_process_group(); time.sleep(60)"}


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_that_leaves_is_named_to_those_who_wait_for_it(tmp_path: Path, how: str) -> None:
    """In seconds, where the limit of the call is half an hour."""
    (tmp_path / "leaves.py").write_text(
        "import sys, time, torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('mpi4py')\ndist.all_reduce(torch.ones(4))\n"
        f"if dist.get_rank() == 1: {ENDS[how]}\n"
        "else: dist.all_reduce(torch.ones(4))\n"
    )
    done = runner(3, "leaves.py", cwd=tmp_path, timeout=50)
    assert done.returncode == 1
    assert "all_reduce: rank 1 has left the group while this rank waits" in done.stderr


@pytest.mark.parametrize("transport", ["", "tcp,self"], ids=["shared memory", "TCP"])
def test_a_message_travels_while_its_sender_is_outside_of_mpi(transport: str) -> None:
    """The sender waits for the answer to it in the store: over TCP nothing but the engine's thread moves the message on."""
    environment = {"OMPI_MCA_btl": transport, "OMPI_MCA_pml": "ob1"} if transport else {}
    done = ok(runner(2, str(SCRIPTS / "answers_by_store.py"), timeout=60, **environment))
    assert sorted(done.stdout.splitlines()) == ["rank 0: answered", "rank 1: received"]


def test_thousands_of_messages_may_be_open() -> None:
    done = ok(runner(2, str(SCRIPTS / "many_messages.py")))
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: 4000 messages" for rank in range(2)]


def test_a_message_from_anybody_says_whose_it_is() -> None:
    done = ok(runner(3, str(SCRIPTS / "from_anybody.py")))
    assert done.stdout == "from [1, 1, 2, 2]\n"


def test_it_is_refused_where_there_is_no_mpi(tmp_path: Path) -> None:
    done = torchrun(2, *RUNNER[1:], "workloads.linear", "--backend", "mpi4py", cwd=tmp_path)
    assert done.returncode != 0
    assert "--backend mpi4py: the ranks did not meet by MPI" in own_lines(done)[0]
    done = runner(2, "--rendezvous", "file", "--replace-backend", "gloo=mpi4py", str(SCRIPTS / "ddp_training.py"))
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert line.startswith("runner: --replace-backend: the ranks did not meet by MPI")


def test_the_mpi_is_asked_whether_it_takes_gpu_memory() -> None:
    """Open MPI's own program says what it was built with; without that it takes none."""
    ompi_info = str(Path(mpirun_path()).with_name("ompi_info"))
    built = run(ompi_info, "--parsable", "--all").stdout
    question = "from mpi4py import MPI\nfrom runner.rendezvous.mpi import takes_gpu_memory\nprint(takes_gpu_memory())"
    answer = ok(mpirun(1, sys.executable, "-c", question)).stdout.strip()
    assert answer == "False" or "mpi_built_with_cuda_support:value:true" in built
