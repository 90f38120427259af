"""``compare`` and the ResNet benchmark, under a real mpirun. Not how fast: only that they measure what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import RUNNER, folder_of, mpirun_path, ok, run, runner, warnings_of
from tests.results import refused
from tests.terminal import on_terminal

SMALL = ["workloads.mnist", "--data", "digits", "--steps", "8", "--rounds", "2"]
RESNET = ["--model", "resnet18", "--image-size", "32", "--batch-size", "2"]


@pytest.mark.needs("mpi4py")
def test_engines_train_the_same_model(tmp_path: Path) -> None:
    options = ["--dtype", "float64", "--json", "found.json", "--plot", "found.png"]
    done = ok(runner(2, "compare", *SMALL, *options, "--engines", "ddp:gloo,ddp:mpi4py,bare", cwd=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"found.json", "found.png"}  # no folder for checkpoints
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
    assert not warnings_of(done)


@pytest.mark.needs("compare", "workloads.llama")
def test_the_default_engines_train_llama_which_clips_gradients(tmp_path: Path) -> None:
    options = ["--length", "16", "--batch-size", "2", "--dtype", "float64", "--steps", "1", "--rounds", "1"]
    ok(runner(2, "compare", "workloads.llama", *options, "--json", "found.json", cwd=tmp_path))
    engines = json.loads((tmp_path / "found.json").read_text())["engines"]
    assert [engine["engine"].partition(":")[0] for engine in engines[-2:]] == ["bare", "alone"]
    for engine in engines[:-1]:
        assert engine["distance"] < 1e-12, engine["engine"]


LAYOUTS = ("ddp:gloo", "fsdp:mpi4py", "tp2+fsdp:gloo", "pp2:gloo", "pp2+pp-schedule=zbv:mpi4py", "local-sgd:gloo")


@pytest.mark.needs("mpi4py")
def test_layouts_train_the_same_model(tmp_path: Path) -> None:
    options = ["--steps", "4", "--rounds", "1", "--dtype", "float64", "--batch-size", "8", "--scale-lr"]
    files = ["--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png")]
    too_many = "pp2+pp-schedule=interleaved1f1b+stages-per-rank=8+micro-batches=2:gloo"
    asked = ",".join([too_many, *LAYOUTS])
    done = ok(runner(2, "compare", "divisible", *options, *files, "--engines", asked, cwd=folder_of("divisible")))
    found = json.loads((tmp_path / "found.json").read_text())
    engines = {engine["engine"]: engine for engine in found["engines"]}
    assert list(engines) == [*LAYOUTS, "alone"]
    assert list(found["not_trained"]) == [too_many]
    assert f"{too_many}: not trained: " in done.stdout
    assert found["samples_per_step"] == 16
    assert "divisible, 2 ranks on 1 host, cpu, 16 samples per step of each engine" in done.stdout
    assert done.stdout.count("began") == 1
    for name in LAYOUTS:
        engine = engines[name]
        assert engine["ranks_agree"], name
        if name == "local-sgd:gloo":
            assert engine["distance"] > 1e-6
        else:
            assert engine["loss"] == pytest.approx(engines["ddp:gloo"]["loss"], rel=1e-9)
            assert engine["distance"] < 1e-12
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("compare")
def test_a_narrow_terminal_gets_fewer_columns(tmp_path: Path) -> None:
    seen = on_terminal(80, mpirun_path(), "-np", "2", *RUNNER, "compare", *SMALL, "--engines", "ddp", cwd=tmp_path)
    assert max(map(len, seen)) <= 80
    assert [line.split()[0] for line in seen[1:5]] == ["engine", "(ms)", "ddp:gloo", "alone"]
    assert "ranks agree" in seen[3]
    left_out = " ".join(line.strip() for line in seen[5:7])
    assert "no room for: 10 % to 90 % (ms), last loss" in left_out


@pytest.mark.needs("compare")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*SMALL, "--engines", "ddp:carrier-pigeon"], "--engines: no engine 'ddp:carrier-pigeon'; there are ddp, fsdp, zero1, local-sgd, horovod, bare, with +tpN"),
        ([*SMALL, "--engines", "tp2:gloo"], "--engines tp2:gloo: "),
        ([*SMALL, "--engines", "ddp:nccl"], "--engines ddp:nccl: no GPU is used"),
        ([*SMALL, "--engines", "ddp,bare", "--micro-batches", "2"], "DDP by hand knows no --micro-batches; leave it out, or take ddp"),
        (["workloads.nothing"], "no workload workloads.nothing: compare takes a module with main(run, argv)"),
        ([*SMALL, "--epochz", "3"], "--epochs? (see python -m runner workloads.mnist --help)"),
        ([*SMALL, "--plot", "/nowhere/x.png"], "--plot: "),
        ([*SMALL, "--rounds", "0"], "--rounds: '0'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    refused(run(*RUNNER, "compare", *arguments, cwd=tmp_path), expected)


@pytest.mark.needs("compare")
def test_a_workload_that_does_not_use_fit_is_named() -> None:
    done = run(*RUNNER, "compare", "shows_its_settings", cwd=folder_of("shows_its_settings"))
    refused(done, "shows_its_settings trains without fit()")


def test_resnet_follows_the_protocol(tmp_path: Path) -> None:
    counts = ["--warmup-batches", "1", "--batches-per-iteration", "2", "--iterations", "3"]
    job = ["--log-dir", "log", "workloads.resnet", *RESNET, *counts, "--precision", "bf16", "--channels-last"]
    done = ok(runner(2, *job, cwd=tmp_path))
    state = json.loads((tmp_path / "log" / "state" / "rank-00001.json").read_text())
    assert (state["step"], state["steps"]) == (7, 7)  # so its hang is noticed
    lines = done.stdout.splitlines()
    assert lines[0] == "batch size: 2 per rank, 2 ranks on cpu"
    assert [line.partition(":")[0] for line in lines[1:4]] == ["iteration 1", "iteration 2", "iteration 3"]
    each, total = (float(line.partition(": ")[2].split()[0]) for line in lines[4:])
    assert total == pytest.approx(2 * each, rel=0.5)  # of two ranks that run side by side


@pytest.mark.needs("mpi4py")
def test_resnet_can_be_compared(tmp_path: Path) -> None:
    options = ["--steps", "2", "--rounds", "1", "--engines", "ddp:mpi4py"]
    done = ok(runner(2, "compare", "workloads.resnet", *RESNET, *options, cwd=tmp_path))
    assert "ddp:mpi4py" in done.stdout
    assert "ranks agree" in done.stdout
    assert "RANKS DIFFER" not in done.stdout
