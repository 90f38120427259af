"""A script that starts by ``runner.start()`` and trains in a loop of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from runner.guard.report.rank_state import read_states
from tests.launching import RUNNER, finish, ok, own_lines, path_of, run, start, under_mpirun
from tests.polling import LIMIT, poll_until
from tests.results import json_object, losses, metrics, refused

SCRIPT = path_of("own_loop")
RANKS = under_mpirun(2)
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# As the controller of submitit's local executor starts its tasks.
SUBMITIT = """
import os, subprocess, sys
job = os.environ | {"SUBMITIT_LOCAL_JOB_ID": str(os.getpid()), "SUBMITIT_LOCAL_NTASKS": "2"}
own = [{f"SUBMITIT_LOCAL_{name}": str(rank) for name in ("GLOBALID", "LOCALID")} for rank in range(2)]
tasks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env=job | one) for one in own]
sys.exit(max(task.wait() for task in tasks))
"""
WAYS = {
    "runner": [*RANKS, *RUNNER],
    "mpirun": [*RANKS, *PYTHON],
    "torchrun": TORCHRUN,
    "submitit": [*PYTHON, "-c", SUBMITIT],
    "python": PYTHON,
    "one rank": RUNNER,
}


def test_it_trains_alike_however_it_is_started(tmp_path: Path) -> None:
    found = {}
    for way, words in WAYS.items():
        folder = tmp_path / way.replace(" ", "-")
        more = ["--global-batch-size", "16", "--dtype", "float64", "--checkpoint-dir", str(folder)]
        done = ok(run(*words, SCRIPT, *more))
        found[way] = losses(folder), [one["right"] for one in metrics(folder)]
        assert "rank 0: 8 steps, 2 epochs, " in done.stdout
        assert done.stderr.count("without the runner's guard") == (way not in ("runner", "one rank"))
    first = found.pop("one rank")
    assert len(first[0]) == 8
    for its_losses, its_right in found.values():
        assert its_losses == pytest.approx(first[0], rel=1e-12)
        assert its_right == pytest.approx(first[1], rel=1e-12)


@pytest.mark.parametrize("way", ["runner", "mpirun"])
def test_it_is_preempted_and_continues_on_other_ranks(way: str, tmp_path: Path) -> None:
    more = ["--global-batch-size", "16", "--dtype", "float64", "--checkpoint-dir"]
    whole = ok(run(*WAYS["one rank"], SCRIPT, *more, str(tmp_path / "whole")))
    done = run(*WAYS[way], SCRIPT, *more, str(tmp_path / "parts"), "--wrong", "killed", "--save-every", "end")
    assert done.returncode == 75, done.stderr
    assert "SIGTERM: saved" in done.stderr
    done = ok(run(*WAYS["python"], SCRIPT, *more, str(tmp_path / "parts"), "--resume"))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-12)
    # Rank 0 has seen its own labels on two ranks, and all of them since.
    assert whole.stdout.splitlines()[-1] == "rank 0: 8 steps, 2 epochs, 128 labels"
    steps = next(line for line in done.stdout.splitlines() if line.startswith("continuing"))
    before = int(steps.partition(", step ")[2].partition(",")[0])
    assert done.stdout.splitlines()[-1] == f"rank 0: 8 steps, 2 epochs, {8 * before + 16 * (8 - before)} labels"


def test_it_stops_where_it_says_so(tmp_path: Path) -> None:
    where = ["--checkpoint-dir", str(tmp_path), "--save-every", "end"]
    done = ok(run(*WAYS["runner"], SCRIPT, *where, "--stop-at", "2"))  # one rank does, in the middle of an epoch
    assert f"checkpoint  {tmp_path}/step-2" in done.stdout


def test_a_schedule_continues_from_a_new_rate(tmp_path: Path) -> None:
    where = ["--checkpoint-dir", str(tmp_path), "--schedule"]
    ok(run(*WAYS["python"], SCRIPT, *where, "--max-steps", "3"))
    ok(run(*WAYS["python"], SCRIPT, *where, "--lr", "0.001", "--max-steps", "6", "--resume"))
    rates = [one["lr"] for one in metrics(tmp_path)]
    assert rates == pytest.approx([0.1] * 3 + [0.001] * 3)


def test_a_rank_that_raises_ends_the_job_without_a_guard(tmp_path: Path) -> None:
    done = run(*WAYS["mpirun"], SCRIPT, "--wrong", "raises", cwd=tmp_path)
    assert done.returncode == 1
    assert "rank 1 of 2 on host " in done.stderr
    assert "failed: ValueError: sample 4711 has no label" in done.stderr


def test_top_shows_it_and_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    log, words = tmp_path / "log", [*RANKS, *RUNNER, "--hang-timeout", "10", "--log-dir", str(tmp_path / "log")]
    command = [*words, SCRIPT, "--wrong", "sleeps", "--log-every", "1", "--checkpoint-dir", str(tmp_path)]
    process = start(*command)

    def all_wait() -> bool:
        """Rank 1 sleeps in its sixth step, which rank 0 has done."""
        return [state.step for state in read_states(log)] == [6, 5]

    poll_until(all_wait, LIMIT, "steps 6 and 5", process)
    found = json_object(ok(run(*RUNNER, "top", "--json", str(log))).stdout)
    done = finish(process)
    assert [found[name] for name in ("size", "step", "steps", "epoch")] == [2, 5, 8, 2]
    assert found["loss"] == pytest.approx(losses(tmp_path)[4])
    assert found["steps_per_second"] > 0
    assert done.returncode == 70
    (line,) = (line for line in own_lines(done) if "no progress" in line)
    assert re.search(
        r"no progress for 10 s, after step [56]: rank 1 on host \S+ in main \(own_loop.py:\d+\); rank 0 waiting in ",
        line,
    )
    assert line.endswith("; continue from its last checkpoint with --resume")


def test_a_collective_of_one_rank_is_told_with_its_call(tmp_path: Path) -> None:
    done = run(*WAYS["runner"], "--backend", "mpi4py", SCRIPT, "--wrong", "alone", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(
        r"rank \d of 2 on host \S+: \w+ \(collective \d+ of its group\) failed: .*call the same on all", done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("wrong", "steps"), [("slow", 8), ("break", 5)])
def test_what_is_no_hang_and_no_early_end(wrong: str, steps: int, tmp_path: Path) -> None:
    """A step of several backward passes and an evaluation, which take long together; a loop that is left by break."""
    done = ok(run(*RANKS, *RUNNER, "--hang-timeout", "4", SCRIPT, "--wrong", wrong, cwd=tmp_path))
    assert len(re.findall(rf"^rank \d: {steps} steps, ", done.stdout, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("own group", "leave out init_process_group()"),
        ("twice", "call it once"),
        ("nothing", "run.prepare"),
        ("no state", "state_dict()"),
        ("outside", "run.batches"),
        ("step", "backward()"),
        ("loss", "one number"),
        ("no loss", "run.log(loss=…)"),
        ("forgotten", "model has had backward() without step(); call model.step() once for each batch"),
        ("text", "run.log(right=…): the value is of type str; log real numbers"),
        ("step name", "run.log(step=…): each line of the metrics has its own step"),
        ("names", "the ranks log different numbers"),
        ("past", "the ranks' gradients are not averaged"),
    ],
)
def test_what_is_wrong_is_one_line(wrong: str, told: str, tmp_path: Path) -> None:
    words = WAYS["runner"] if wrong in ("names", "past") else WAYS["python"]
    done = run(*words, SCRIPT, "--wrong", wrong, "--log-every", "2", cwd=tmp_path)
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_what_a_prepared_model_lacks_is_told(tmp_path: Path) -> None:
    done = run(*PYTHON, SCRIPT, "--wrong", "eval", cwd=tmp_path)
    assert "AttributeError: a prepared model has no eval: " in done.stderr
    assert "model.evaluating()" in done.stderr


def test_options_that_it_does_not_have_are_refused_and_check_finite_ends_it(tmp_path: Path) -> None:
    for option, told in (("--weights=model.safetensors", "with run.fit only"), ("--micro-batches=2", "accumulate()")):
        refused(run(*WAYS["one rank"], SCRIPT, option, cwd=tmp_path), told)
    done = run(*WAYS["mpirun"], SCRIPT, "--wrong", "nan", "--check-finite", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("--check-finite: the loss is nan on rank 1 at step 1, in epoch 1 (host ") == 1


def test_its_help_has_its_own_options(tmp_path: Path) -> None:
    done = ok(run(*PYTHON, SCRIPT, "--help"))
    assert done.stdout.startswith("usage: own_loop.py [options]\n\nA script with a loop of its own")
    assert "--stop-at" in done.stdout
    refused(run(*PYTHON, SCRIPT, "--stop-a", "4", cwd=tmp_path), "did you mean --stop-at?")


def test_a_compiled_model_is_resumed_without_the_compiler(tmp_path: Path) -> None:
    """Checkpoints and exports have the names of the model itself."""
    more = ["--checkpoint-dir", str(tmp_path / "runs")]
    ok(run(*WAYS["runner"], SCRIPT, *more, "--epochs", "1", "--wrong", "compiled", "--strategy", "fsdp"))
    ok(run(*RUNNER, "checkpoint", "export", str(tmp_path / "runs"), str(tmp_path / "model.safetensors")))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    ok(run(*WAYS["one rank"], SCRIPT, *more, "--resume", "--global-batch-size", "16"))
    assert len(losses(tmp_path / "runs")) == 8


def test_state_that_becomes_odd_costs_only_itself(tmp_path: Path) -> None:
    more = ["--checkpoint-dir", str(tmp_path), "--save-every", "end"]
    told = f"cannot hold own.seen.odd, which is of type object; {tmp_path}/step-8 has all but that"
    refused(run(*WAYS["runner"], SCRIPT, *more, "--wrong", "odd state"), told)
    ok(run(*RUNNER, "checkpoint", "verify", str(tmp_path)))
    told = "the checkpoint has no seen, which the script registers"
    refused(run(*WAYS["one rank"], SCRIPT, *more, "--resume", "--epochs", "3"), told)
