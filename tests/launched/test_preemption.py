"""A signal or the time limit: all ranks save at one step, and end with the exit code that asks to be run again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGTERM, SIGUSR1, Signals
from subprocess import PIPE

import psutil
import pytest

from runner.guard.report.rank_state import read_states
from runner.training.checkpoint.checkpoint_folder import read_manifest
from tests.launching import PROGRAMS, RUNNER, clean_environment, mpirun_path, ok, own_lines, path_of, run, runner
from tests.polling import LIMIT, poll_until
from tests.processes import is_worker
from tests.results import metrics, refused
from tests.turns import Turns

TRAINING = PROGRAMS / "training"
LONG = ["resumable", "--epochs", "2000", "--batch-size", "4", "--save-every", "end", "--log-every", "1"]


def started(folder: Path, *arguments: str, of_runner: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A training on two ranks, in its first steps."""
    command = [mpirun_path(), "-np", "2", *RUNNER, *of_runner, *LONG, "--checkpoint-dir", str(folder), *arguments]
    process = subprocess.Popen(command, cwd=TRAINING, env=clean_environment(), stdout=PIPE, stderr=PIPE, text=True)
    file = folder / "metrics.jsonl"
    poll_until(lambda: file.exists() and metrics(folder), LIMIT, "metrics of the first steps", process)
    return process


def saved_step(folder: Path) -> int:
    """The step of the only checkpoint, up to which there are metrics."""
    (path,) = folder.glob("step-*")
    step = read_manifest(path)[0].position.step
    assert [line["step"] for line in metrics(folder)] == list(range(1, step + 1))
    return step


def test_a_signal_saves_and_asks_for_another_run(turns: Turns, tmp_path: Path) -> None:
    process = started(tmp_path / "parts")
    process.send_signal(SIGUSR1)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, stderr
    step = saved_step(tmp_path / "parts")
    assert stderr.count("runner: ") == 1
    assert f"runner: SIGUSR1: saved {tmp_path}/parts/step-{step}; continue with --resume" in stderr
    # it continues as if nothing had been
    more = ["--max-steps", str(step + 8)]
    ok(turns(2, *LONG, "--checkpoint-dir", str(tmp_path / "parts"), "--resume", *more))
    ok(turns(2, *LONG, "--checkpoint-dir", str(tmp_path / "whole"), *more))
    parts, whole = ([line["loss"] for line in metrics(tmp_path / name)] for name in ("parts", "whole"))
    assert parts == whole


@pytest.mark.parametrize("arguments", [["--time-limit", "0:1"], ["--time-limit", "0:1", "--save-async"]])
def test_the_time_limit_does_so_before_it_is_over(arguments: list[str], turns: Turns, tmp_path: Path) -> None:
    done = turns(2, *LONG, "--checkpoint-dir", str(tmp_path), *arguments)
    assert done.returncode == 75
    assert (
        f"the time limit is near: saved {tmp_path}/step-{saved_step(tmp_path)}; continue with --resume" in done.stderr
    )


def test_a_rank_that_alone_gets_sigterm_takes_the_others_with_it(tmp_path: Path) -> None:
    process = started(tmp_path, of_runner=["--log-dir", str(tmp_path / "log")])
    worker = next(one for one in psutil.Process(process.pid).children(recursive=True) if is_worker(one))
    worker.send_signal(SIGTERM)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in stderr
    assert [state.ended_by for state in read_states(tmp_path / "log")] == ["SIGTERM", "SIGTERM"]


def test_a_warning_before_the_training_begins_is_received(tmp_path: Path) -> None:
    """It is imported and built first, which takes seconds."""
    command = [mpirun_path(), "-np", "2", *RUNNER, *LONG, "--checkpoint-dir", str(tmp_path)]
    process = subprocess.Popen(command, cwd=TRAINING, env=clean_environment(), stdout=PIPE, stderr=PIPE, text=True)

    def both_ranks_run() -> bool:  # a guard and a worker each
        below = psutil.Process(process.pid).children(recursive=True)
        return sum("resumable" in " ".join(one.cmdline()) for one in below) >= 4

    poll_until(both_ranks_run, LIMIT, "guards and workers of two ranks", process)
    time.sleep(0.5)
    assert not (tmp_path / "metrics.jsonl").exists()
    process.send_signal(SIGUSR1)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, stderr
    assert "SIGUSR1" in stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in stderr


@pytest.mark.parametrize("epochs", ["1", "2"])
def test_an_evaluation_is_left(epochs: str, tmp_path: Path) -> None:
    """It would take ten minutes. The last one is made when the job continues."""
    job = [mpirun_path(), "-np", "2", *RUNNER, "slow_evaluation", "--epochs", epochs, "--checkpoint-dir", str(tmp_path)]
    process = subprocess.Popen(job, cwd=TRAINING, env=clean_environment(), stdout=PIPE, stderr=PIPE, text=True)
    while not (tmp_path / "evaluates").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(SIGUSR1)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, stderr
    assert saved_step(tmp_path) == 2


def test_a_checkpoint_every_so_many_seconds(turns: Turns, tmp_path: Path) -> None:
    """Also where metrics are seldom gathered."""
    job = ["faulty", "--checkpoint-dir", str(tmp_path), "--save-every", "end", "--keep", "100", "--log-every", "1000"]
    job += ["--save-every", "0.1s", "--max-steps", "120", "--batch-size", "1"]  # of 5 ms, in one epoch
    ok(turns(2, *job))
    assert len(list(tmp_path.glob("step-*"))) >= 3  # the last one is at the end
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 121))


def test_the_time_limit_leaves_as_much_as_checkpoints_have_taken(tmp_path: Path) -> None:
    """Each takes 12 s here, more than a tenth of the time: the second would come too late."""
    began = time.monotonic()
    job = ["saves_slowly", "--checkpoint-dir", str(tmp_path), "--time-limit", "0:50", "--save-every", "10steps"]
    done = run(*RUNNER, *job, "--keep", "1", "--epochs", "1000", cwd=TRAINING, timeout=300)
    assert done.returncode == 75, done.stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in done.stderr
    assert time.monotonic() - began < 50  # by the job's own choice


def test_after_sigterm_a_step_may_take_longer_than_half_a_minute(tmp_path: Path) -> None:
    job = ["saves_slowly", "--checkpoint-dir", str(tmp_path), "--step-seconds", "40", "--epochs", "1"]
    process = subprocess.Popen([*RUNNER, *job], cwd=TRAINING, env=clean_environment(), stderr=PIPE, text=True)
    poll_until((tmp_path / "in-step").exists, 120, "the first step", process)
    process.send_signal(SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr
    assert "SIGTERM" in stderr
    assert f"{tmp_path}/step-1;" in stderr


def test_requeue_is_refused_where_nothing_queues(turns: Turns, tmp_path: Path) -> None:
    done = turns(1, *LONG, "--checkpoint-dir", str(tmp_path), "--requeue")
    assert done.returncode == 2
    assert "--requeue: this is no Slurm job; leave it out" in done.stderr


@pytest.mark.parametrize("how", ["usr1", "touch"])
def test_a_script_is_told_before_its_time_limit(how: str, tmp_path: Path) -> None:
    file = tmp_path / "save now"
    file.touch()  # of an earlier job
    options = ["--time-limit", "0:1", "--on-preempt", "usr1" if how == "usr1" else f"touch={file}"]
    script = [path_of("saves_when_told"), str(tmp_path), *([str(file)] if how == "touch" else [])]
    done = ok(runner(2, *options, *script))
    assert {path.name for path in tmp_path.glob("*.saved")} == {"0.saved", "1.saved"}
    assert len(own_lines(done)) == 1


@pytest.mark.parametrize(("number", "how"), [(SIGTERM, "usr1"), (SIGUSR1, "touch")])
def test_a_script_is_told_at_a_signal(number: Signals, how: str, tmp_path: Path) -> None:
    file = tmp_path / "now"
    options = ["--on-preempt", "usr1" if how == "usr1" else f"touch={file}"]
    script = [path_of("saves_when_told"), str(tmp_path), *([str(file)] if how == "touch" else [])]
    process = subprocess.Popen([*RUNNER, *options, *script], env=clean_environment(), stderr=PIPE, text=True)
    poll_until((tmp_path / "0.started").exists, LIMIT, "the script has started", process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, stderr
    assert (tmp_path / "0.saved").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on-preempt", "usr2"], "argument --on-preempt: 'usr2' is neither usr1 nor touch=FILE"),
        (["--on-preempt", "touch=/nothing/file"], "there is no folder /nothing for /nothing/file"),
        (["--on-preempt", "touch=train.py"], "train.py is there, and not empty; name a file that the job may remove"),
    ],
)
def test_what_cannot_tell_a_script_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    refused(run(*RUNNER, *options, "train.py", cwd=tmp_path), message)
