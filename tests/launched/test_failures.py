"""A failure on one rank ends the whole job, and is told first."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from runner.guard.hang.stacks import IS_RECORDED
from tests.launching import (
    RUNNER,
    finish,
    folder_of,
    free_port,
    ok,
    own_lines,
    path_of,
    run,
    runner,
    start,
    under_mpirun,
)
from tests.polling import LIMIT, poll_until
from tests.results import refused


def test_an_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    mark = str(tmp_path)  # in its command line: others may run beside it
    done = runner(3, path_of("one_rank_raises"), mark)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.strip()]
    assert told[0].startswith("runner: rank 2 of 3 on host ")
    assert told[0].endswith("failed: ValueError: the loss exploded")
    assert told[1].endswith("Traceback (most recent call last):"), "torch prefixes it with the rank"
    assert "one_rank_raises.py" in told[2], "the traceback begins at the script, not in the runner"

    def is_left() -> bool:
        return any(mark in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))

    poll_until(lambda: not is_left(), LIMIT, "all processes have ended")  # the launcher may end before the last of them


def test_ranks_that_fail_alike_print_one_traceback(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "raise ValueError('of rank 1' if dist.get_rank() == 1 else 'bad data')\n"
    )
    done = runner(3, str(tmp_path / "raises.py"))
    assert done.returncode == 1
    told = {re.sub(r".* failed: ", "", line) for line in own_lines(done) if " failed: " in line}
    assert told == {"ValueError: bad data (ranks 0, 2 alike)", "ValueError: of rank 1"}
    assert done.stderr.count("Traceback") == 2


@pytest.mark.parametrize("way", ["mpi", "file"])
def test_what_one_rank_alone_refuses_for_all_is_not_lost(way: str) -> None:
    """Only rank 0 prints what all ranks refuse. Where it has not refused it, its guard prints it for the other."""
    done = runner(2, "--rendezvous", way, path_of("refused_by_one"))
    assert done.returncode != 0
    (told,) = (line for line in own_lines(done) if "no strategy" in line)
    assert re.fullmatch(r"runner: rank 1 of 2 on host \S+: there is no strategy theirs; install its package", told)


def test_an_exception_ends_ranks_that_do_not_communicate() -> None:
    done = runner(2, path_of("one_rank_raises_alone"))
    assert done.returncode == 1
    first = next(line for line in done.stderr.splitlines() if line.strip())
    assert first.endswith("failed: ValueError: the loss exploded"), "the first line of the message is the cause"


def test_a_programs_own_excepthook_is_called() -> None:
    code = "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', error)\nraise ValueError('x')"
    assert "hooked x" in run(*RUNNER, "-c", code).stdout


def test_an_exit_code_on_one_rank_ends_the_job_while_others_wait_in_mpi() -> None:
    done = runner(2, path_of("exits"), "1", "2", "wait")
    refused(done, "runner: rank 1 of 2 on host ", " ended with code 2, by sys.exit()")


@pytest.mark.needs("recorder")
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi4py", marks=pytest.mark.needs("mpi4py"))])
def test_a_hang_shows_which_rank_is_missing_from_which_collective(backend: str) -> None:
    job = ["faulty", "--fault", "sleep", "--save-every", "end"]
    # Importing what the first step needs is not to count as a hang, on a busy machine, too.
    done = runner(3, "--hang-timeout", "6", "--backend", backend, *job, cwd=folder_of("faulty"))
    assert done.returncode == 70
    shown = re.search(
        r"^process group default_pg: ranks 0, 2 in collective (\d+) \(\w+.*\); rank 1 done with collective (\d+).*; missing: rank 1$",
        done.stderr,
        re.MULTILINE,
    )
    assert shown, done.stderr
    assert int(shown[1]) == int(shown[2]) + 1


@pytest.mark.needs("recorder")
def test_a_script_that_hangs_in_a_collective_shows_it_too(tmp_path: Path) -> None:
    shutil.copy(path_of("late_for_a_barrier"), tmp_path)
    (tmp_path / "runner.py").touch()  # a module of the program's, which hides this package
    done = runner(2, "--hang-timeout", "2", str(tmp_path / "late_for_a_barrier.py"))
    assert done.returncode == 70
    first, *more = done.stderr[done.stderr.index("runner: ") :].splitlines()
    assert re.fullmatch(
        r"runner: no progress for 2 s, in a collective: rank 1 on host \S+ in <module> \(late_for_a_barrier.py:9\); rank 0 waiting in "
        r"barrier, called in <module> \(late_for_a_barrier.py:10\); if it is only slow, allow more with --hang-timeout",
        first,
    ), done.stderr
    assert any(re.match(r"process group default_pg: rank 0 .* rank 1$", line) for line in more)


def test_a_script_that_hangs_names_the_rank_with_any_torch() -> None:
    done = runner(2, "--hang-timeout", "15", path_of("late_for_a_step"), timeout=300)
    assert done.returncode == 70
    (line,) = (line for line in own_lines(done) if ": rank 1 on host " in line)
    assert re.search(r"in <module> \(late_for_a_step.py:\d+\); rank 0 ", line)
    assert "NCCL_SOCKET_IFNAME" not in line  # it can connect
    told = [line for line in own_lines(done) if "--hang-timeout in every wait of a script" in line]
    assert len(told) == (not IS_RECORDED)
    assert "runpy" not in done.stderr


@pytest.mark.needs("recorder")
def test_a_workload_that_hangs_before_its_training_does_so_too() -> None:
    """After five sixths of the time that a collective may take."""
    timeouts = ["--hang-timeout", "2", "--collective-timeout", "60"]
    done = runner(2, *timeouts, "late_for_its_training", cwd=folder_of("late_for_its_training"))
    assert done.returncode == 70
    (line,) = own_lines(done)
    assert re.search(r" 50 s, .*: rank 1 on host \S+ in main \(late_for_its_training.py:.* --collective-timeout", line)
    assert re.search(r"^process group default_pg: rank 0 .* rank 1$", done.stderr, re.MULTILINE)


def test_a_hang_before_the_first_collective_is_reported_with_its_usual_causes() -> None:
    options = ["--backend", "gloo", "--hang-timeout", "8"]
    where = folder_of("hangs_while_connecting")
    done = runner(2, *options, "hangs_while_connecting", cwd=where, timeout=300)
    assert done.returncode == 70, done.stderr
    where = "in torch.distributed, but in no collective" if IS_RECORDED else "in a call of torch.distributed"
    assert f" 8 s, {where}: rank 0 " in done.stderr
    assert " in wait (hangs_while_connecting.py:" in done.stderr
    assert "if the ranks cannot connect: see that NCCL_SOCKET_IFNAME" in done.stderr


def test_hooks_and_many_micro_batches_may_take_longer_than_a_step(tmp_path: Path) -> None:
    job = ["--batch-size", "8", "--micro-batches", "4", "--epochs", "1", "--checkpoint-dir", str(tmp_path)]
    where = folder_of("slow_between_steps")
    done = ok(runner(2, "--hang-timeout", "7", "slow_between_steps", *job, cwd=where, timeout=300))
    assert "done: 4 steps" in done.stdout


def test_a_script_with_an_error_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = (\n")
    done = runner(1, "broken.py", cwd=tmp_path)
    assert (done.returncode, "SyntaxError" in done.stderr) == (1, True)


def test_files_that_the_program_left_open_are_written(tmp_path: Path) -> None:
    ok(runner(2, path_of("leaves_files_open"), cwd=tmp_path))
    for rank in range(2):
        assert (tmp_path / f"early{rank}").read_text() == "before torch"
        assert gzip.decompress((tmp_path / f"early_packed{rank}").read_bytes()) == b"in a cycle"
        assert (tmp_path / f"log{rank}").read_text() == "not flushed by the program"
        assert json.loads((tmp_path / f"handler{rank}").read_text()) == "by a handler"
        assert gzip.decompress((tmp_path / f"packed{rank}").read_bytes()) == b"in full"
    assert not list(tmp_path.glob("tmp*"))


@pytest.mark.parametrize(
    ("early", "how", "way"), [(0, "return", "mpi"), (1, "barrier", "mpi"), (1, "os._exit", "file")]
)
def test_a_rank_that_ends_while_others_work_is_named_and_ends_the_job(early: int, how: str, way: str) -> None:
    """One batch fewer, one barrier left out: a job that would wait until the group's time limit."""
    done = runner(2, "--rendezvous", way, path_of("ends_early"), str(early), how)
    assert done.returncode == 1
    (told,) = (line for line in own_lines(done) if " failed: " in line)
    assert told.startswith(f"runner: rank {1 - early} of 2 on host ")
    assert f"failed: rank {early} on " in told
    assert "had already ended while this rank still worked" in told


def test_a_rank_that_leaves_without_a_word_is_named() -> None:
    done = runner(2, path_of("exits"), "0", "_0", "wait")
    assert done.returncode == 1
    named = [line for line in own_lines(done) if ": ended with code 0, without Python's own end" in line]
    assert [line.partition(" on host ")[0] for line in named] == ["runner: rank 0 of 2"]


def test_calls_that_differ_name_the_setting_that_shows_them() -> None:
    done = runner(2, path_of("different_shapes"))
    assert done.returncode != 0
    assert own_lines(done)[0].startswith("runner: rank ")
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL shows whether the ranks' collective calls differ" in own_lines(done)[0]
    shown = runner(2, path_of("different_shapes"), TORCH_DISTRIBUTED_DEBUG="DETAIL")
    difference = ["Detected mismatch between collectives", "TensorShape=[1100]", "[1000]"]
    assert all(part in own_lines(shown)[0] for part in difference)


def test_the_time_limit_of_collectives_counts_in_scripts() -> None:
    done = runner(2, "--collective-timeout", "3", path_of("late_for_a_barrier"))
    assert done.returncode == 1
    assert "rank 0 of 2" in own_lines(done)[0]
    assert "imed out" in own_lines(done)[0]


def wait_for_both(tmp_path: Path, name: str, launcher: subprocess.Popen[str]) -> None:
    """Wait until each of two ranks has made its file of this name."""
    files = [tmp_path / f"{name}{rank}" for rank in range(2)]
    poll_until(lambda: all(file.exists() for file in files), LIMIT, f"{name} of both ranks", launcher)


def test_a_job_whose_mpirun_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    launcher = start(*under_mpirun(2, *RUNNER, path_of("starts_a_child")), cwd=tmp_path)
    wait_for_both(tmp_path, "child", launcher)
    below = psutil.Process(launcher.pid).children(recursive=True)
    assert len(below) >= 6, "guards, workers, and what they have started"
    launcher.terminate()
    done = finish(launcher)
    assert done.returncode != 0
    assert not psutil.wait_procs(below, timeout=LIMIT)[1]
    told = [line.partition(": SIGTERM from the launcher")[0] for line in own_lines(done)]
    assert [line[:22] for line in told] == ["runner: rank 0 of 2 on"]


@pytest.mark.parametrize("how", ["handler", "thread"])
def test_files_of_a_failed_program_are_written_before_what_takes_long(how: str, tmp_path: Path) -> None:
    done = runner(1, path_of("fails_and_takes_long"), how, cwd=tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "log").read_text() == "found"


def test_a_signal_to_a_rank_that_has_ended_does_not_fail_the_job(tmp_path: Path) -> None:
    """Its handler's names are gone, while MPI's end waits for the others."""
    launcher = start(*under_mpirun(2, *RUNNER, path_of("one_waits_for_a_signal")), cwd=tmp_path)
    wait_for_both(tmp_path, "ready", launcher)
    time.sleep(1)  # rank 0 is in MPI's end by now
    launcher.send_signal(signal.SIGUSR1)
    done = finish(launcher)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_failure_is_known_to_all_after_rank_0_has_ended(tmp_path: Path) -> None:
    """Started by hand, so that no launcher ends the others: the messages go by rank 0's guard."""
    by_hand = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [*RUNNER, path_of("rank_0_leaves"), str(tmp_path)]
    processes = [start(*command, RANK=str(rank), LOCAL_RANK=str(rank), **by_hand) for rank in range(3)]
    ended = [finish(process) for process in processes]
    assert [done.returncode for done in ended] == [1, 1, 1]
    assert [own_lines(done)[:1] for done in ended if done is not ended[1]] == [[], []]
    assert own_lines(ended[1])[0].endswith("failed: ValueError: odd")
