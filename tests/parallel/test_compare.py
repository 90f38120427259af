"""``compare`` and the ResNet benchmark, under a real mpirun. Not how fast: only that they measure what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import RUNNER, mpirun_path, ok, own_lines, run, runner
from tests.terminal import on_terminal

SMALL = ["workloads.mnist", "--data", "digits", "--steps", "8", "--rounds", "2"]
RESNET = ["--image-size", "32", "--batch-size", "2"]


@pytest.mark.mpi4py
def test_engines_train_the_same_model(tmp_path: Path) -> None:
    options = ["--dtype", "float64", "--json", "found.json", "--plot", "found.png"]
    done = ok(runner(2, "compare", *SMALL, *options, "--engines", "ddp:gloo,ddp:mpi4py,bare", cwd=tmp_path))
    found = json.loads((tmp_path / "found.json").read_text())
    engines = {engine["engine"]: engine for engine in found["engines"]}
    assert list(engines) == ["ddp:gloo", "ddp:mpi4py", "bare:gloo", "alone"]
    assert (found["ranks"], found["hosts"]) == (2, [2])
    for name, engine in engines.items():
        assert engine["samples_per_s"] > 0
        assert engine["step_low"] <= engine["step"] <= engine["step_high"]
        assert name in done.stdout
        if name != "alone":
            assert engine["ranks_agree"]
            assert engine["distance"] < 1e-12
            assert engine["loss"] == pytest.approx(engines["ddp:gloo"]["loss"], rel=1e-9)
    assert not engines["alone"]["ranks_agree"]  # so the comparison of weights can fail
    assert engines["alone"]["distance"] > 1e-6
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.splitlines()[-2:] == ["wrote found.json", "wrote found.png"]
    assert done.stderr == ""


def test_a_narrow_terminal_gets_fewer_columns(tmp_path: Path) -> None:
    seen = on_terminal(80, mpirun_path(), "-np", "2", *RUNNER, "compare", *SMALL, "--engines", "ddp", cwd=tmp_path)
    assert max(map(len, seen)) <= 80
    assert [line.split()[0] for line in seen[1:5]] == ["engine", "(ms)", "ddp:gloo", "alone"]
    assert "ranks agree" in seen[3]
    assert "no room for: 10 % to 90 % (ms), lowest to highest, exchange (ms), last loss" in seen[5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SMALL, "--engines", "ddp:carrier-pigeon"], "--engines: no engine 'ddp:carrier-pigeon'; there are ddp, horovod, bare"),
        ([*SMALL, "--engines", "ddp:nccl"], "--engines ddp:nccl: no GPU is used"),
        (["workloads.nothing"], "no workload workloads.nothing: compare takes a module with main(run, argv)"),
        ([*SMALL, "--epochz", "3"], "unrecognized arguments: --epochz 3 (see python -m runner workloads.mnist --help)"),
        ([*SMALL, "--plot", "/nowhere/x.png"], "--plot: cannot write in /nowhere"),
        ([*SMALL, "--rounds", "0"], "--rounds: '0' is not a whole number above 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = runner(2, "compare", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert said in line
    assert "Traceback" not in done.stderr


def test_a_workload_that_does_not_use_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def main(run, argv): run.say('trained')\n")
    done = run(*RUNNER, "compare", "own", cwd=tmp_path)
    assert done.returncode == 2
    assert "own trains without fit()" in own_lines(done)[0]


def test_resnet_follows_the_protocol(tmp_path: Path) -> None:
    counts = ["--warmup-batches", "1", "--batches-per-iteration", "2", "--iterations", "3"]
    done = ok(runner(2, "workloads.resnet", *RESNET, *counts, "--bf16", "--channels-last", cwd=tmp_path))
    lines = done.stdout.splitlines()
    assert lines[0] == "batch size: 2 per rank, 2 ranks on cpu"
    assert [line.partition(":")[0] for line in lines[1:4]] == ["iteration 1", "iteration 2", "iteration 3"]
    each, total = (float(line.partition(": ")[2].split()[0]) for line in lines[4:])
    assert total == pytest.approx(2 * each, rel=0.5)  # of two ranks that run side by side


def test_resnet_compiles(tmp_path: Path) -> None:
    counts = ["--warmup-batches", "1", "--batches-per-iteration", "1", "--iterations", "1"]
    done = ok(runner(1, "workloads.resnet", *RESNET, *counts, "--compile", cwd=tmp_path, timeout=280))
    assert "total images/s on 1 rank(s)" in done.stdout


@pytest.mark.mpi4py
def test_resnet_can_be_compared(tmp_path: Path) -> None:
    done = ok(
        runner(
            2,
            "compare",
            "workloads.resnet",
            *RESNET,
            "--steps",
            "2",
            "--rounds",
            "1",
            "--engines",
            "ddp:mpi4py",
            cwd=tmp_path,
        )
    )
    assert "ddp:mpi4py" in done.stdout
    assert "ranks agree" in done.stdout
    assert "RANKS DIFFER" not in done.stdout
