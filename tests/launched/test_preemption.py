"""A signal or the time limit: all ranks save at one step, and end with the exit code that asks to be run again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM, SIGUSR1, Signals

import psutil
import pytest

from runner.guard.report.rank_state import read_states
from runner.training.checkpoint.checkpoint_folder import read_manifest
from tests.launching import PROGRAMS, RUNNER, finish, ok, own_lines, path_of, run, runner, start, under_mpirun
from tests.polling import LIMIT, poll_until
from tests.processes import is_worker
from tests.results import metrics, refused
from tests.turns import Turns

TRAINING = PROGRAMS / "training"
LONG = ["resumable", "--epochs", "2000", "--batch-size", "4", "--save-every", "end", "--log-every", "1"]


def started(folder: Path, *of_runner: str) -> subprocess.Popen[str]:
    """A training on two ranks, in its first steps."""
    process = start(*under_mpirun(2, *RUNNER, *of_runner, *LONG, "--checkpoint-dir", str(folder)), cwd=TRAINING)
    file = folder / "metrics.jsonl"
    poll_until(lambda: file.exists() and metrics(folder), LIMIT, "metrics of the first steps", process)
    return process


def preempted(process: subprocess.Popen[str], number: Signals, is_ready: Callable[[], object] = lambda: True) -> str:
    """Send a job a signal once it is ready; return what the job prints on stderr before it asks to be run again."""
    poll_until(is_ready, LIMIT, "the job is ready for the signal", process)
    process.send_signal(number)
    done = finish(process, 300)
    assert done.returncode == 75, done.stderr
    return done.stderr


def saved_step(folder: Path) -> int:
    """The step of the only checkpoint, up to which there are metrics."""
    (path,) = folder.glob("step-*")
    step = read_manifest(path)[0].position.step
    assert [line["step"] for line in metrics(folder)] == list(range(1, step + 1))
    return step


def test_a_signal_saves_and_asks_for_another_run(turns: Turns, tmp_path: Path) -> None:
    stderr = preempted(started(tmp_path / "parts"), SIGUSR1)
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
    assert f"the time limit is near: saved {tmp_path}/step-{saved_step(tmp_path)}; continue with" in done.stderr


def test_a_rank_that_alone_gets_sigterm_takes_the_others_with_it(tmp_path: Path) -> None:
    process = started(tmp_path, "--log-dir", str(tmp_path / "log"))
    worker = next(one for one in psutil.Process(process.pid).children(recursive=True) if is_worker(one))
    worker.send_signal(SIGTERM)
    done = finish(process)
    assert done.returncode == 75, done.stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in done.stderr
    assert [state.ended_by for state in read_states(tmp_path / "log")] == ["SIGTERM", "SIGTERM"]


def test_a_warning_before_the_training_begins_is_received(tmp_path: Path) -> None:
    """It is imported and built first, which takes seconds."""
    process = start(*under_mpirun(2, *RUNNER, *LONG, "--checkpoint-dir", str(tmp_path)), cwd=TRAINING)

    def both_ranks_run() -> bool:  # a guard and a worker each
        below = psutil.Process(process.pid).children(recursive=True)
        return sum("resumable" in " ".join(one.cmdline()) for one in below) >= 4

    poll_until(both_ranks_run, LIMIT, "guards and workers of two ranks", process)
    time.sleep(0.5)
    assert not (tmp_path / "metrics.jsonl").exists()
    stderr = preempted(process, SIGUSR1)
    assert "SIGUSR1" in stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in stderr


@pytest.mark.parametrize("epochs", ["1", "2"])
def test_an_evaluation_is_left(epochs: str, tmp_path: Path) -> None:
    """It would take ten minutes. The last one is made when the job continues."""
    job = ["resumable", "--slow-evaluation", "--batch-size=16", "--epochs", epochs, "--checkpoint-dir", str(tmp_path)]
    process = start(*under_mpirun(2, *RUNNER, *job), cwd=TRAINING)
    preempted(process, SIGUSR1, (tmp_path / "evaluates").exists)
    assert saved_step(tmp_path) == 2


def test_the_time_limit_leaves_as_much_as_checkpoints_have_taken(tmp_path: Path) -> None:
    """Each takes 12 s here, more than a tenth of the time: the second would come too late."""
    began = time.monotonic()
    job = ["resumable", "--slow-writing=12", "--slow-steps=0.1", "--epochs=1000", "--save-every=10steps", "--keep=1"]
    job += ["--time-limit=0:50", "--checkpoint-dir", str(tmp_path)]
    done = run(*RUNNER, *job, cwd=TRAINING, timeout=300)
    assert done.returncode == 75, done.stderr
    assert f"{tmp_path}/step-{saved_step(tmp_path)};" in done.stderr
    assert time.monotonic() - began < 50  # by the job's own choice


def test_after_sigterm_a_step_may_take_longer_than_half_a_minute(tmp_path: Path) -> None:
    job = ["resumable", "--slow-steps=40", "--epochs=1", "--checkpoint-dir", str(tmp_path)]
    stderr = preempted(start(*RUNNER, *job, cwd=TRAINING), SIGTERM, (tmp_path / "in-step").exists)
    assert "SIGTERM" in stderr
    assert f"{tmp_path}/step-1;" in stderr


def test_requeue_is_refused_where_nothing_queues(turns: Turns, tmp_path: Path) -> None:
    done = turns(1, *LONG, "--checkpoint-dir", str(tmp_path), "--requeue")
    refused(done, "--requeue: this is no Slurm job; leave it out")


def told_by(how: str, folder: Path) -> list[str]:
    """A script that is told by a signal or by a file."""
    file = folder / "save now"
    script = [path_of("saves_when_told"), str(folder)]
    return ["usr1", *script] if how == "usr1" else [f"touch={file}", *script, str(file)]


@pytest.mark.parametrize("how", ["usr1", "touch"])
def test_a_script_is_told_before_its_time_limit(how: str, tmp_path: Path) -> None:
    (tmp_path / "save now").touch()  # of an earlier job
    done = ok(runner(2, "--time-limit", "0:1", "--on-preempt", *told_by(how, tmp_path)))
    assert {path.name for path in tmp_path.glob("*.saved")} == {"0.saved", "1.saved"}
    assert len(own_lines(done)) == 1


@pytest.mark.parametrize(("number", "how"), [(SIGTERM, "usr1"), (SIGUSR1, "touch")])
def test_a_script_is_told_at_a_signal(number: Signals, how: str, tmp_path: Path) -> None:
    process = start(*RUNNER, "--on-preempt", *told_by(how, tmp_path))
    poll_until((tmp_path / "0.started").exists, LIMIT, "the script has started", process)
    process.send_signal(number)
    ok(finish(process))
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
