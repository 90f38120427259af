"""The modules of docs/train/your-model.md, and a script of each kind, through every tool and option that takes a target."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.launching import ROOT, RUNNER, mpirun_path, ok, path_of, run, runner
from tests.results import losses, refused
from tests.turns import Turns

PAGE = ROOT / "docs" / "train" / "your-model.md"
ENGINES = {
    "mywork": ["ddp", "zero1", "fsdp", "local-sgd", "bare"],
    "mymodel": ["ddp", "zero1", "fsdp+tp2", "tp2", "pp2"],
}
STRATEGIES = ["--strategy ddp", "--strategy zero1", "--strategy fsdp"]
LAYOUTS = {"mywork": STRATEGIES, "mymodel": [*STRATEGIES, "--tp 2", "--pp 2 --micro-batches 2"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both modules as the page has them."""
    made = tmp_path_factory.mktemp("documented")
    blocks = re.findall(r"^```[^\n]*python\n(?::caption:[^\n]*\n\n)?(.*?)^```", PAGE.read_text(), re.M | re.S)
    for name, title in (("mywork", "My first workload."), ("mymodel", "My model.")):
        (text,) = [block for block in blocks if block.startswith(f'"""{title}"""')]
        (made / f"{name}.py").write_text(text)
    (made / "loaded.py").write_text(
        (made / "mymodel.py")
        .read_text()
        .replace("train_data=TensorDataset(", "train_data=torch.utils.data.DataLoader(TensorDataset(")
        .replace("torch.rand(1024, 1)),", "torch.rand(1024, 1)), 16, shuffle=True),")
    )
    return made


def compared(folder: Path, workload: str, engines: list[str], *options: str) -> tuple[dict[str, float], dict[str, str]]:
    """The distance of each engine's weights from the first one's, and why others are not trained."""
    words = ["--steps", "2", "--rounds", "1", "--dtype", "float64", "--json", "compared.json"]
    done = runner(2, "compare", workload, "--engines", ",".join(engines), *words, *options, cwd=folder)
    ok(done)
    found = json.loads((folder / "compared.json").read_text())
    return {one["engine"].partition(":")[0]: one["distance"] for one in found["engines"]}, found["not_trained"]


@pytest.mark.parametrize("name", ["mywork", "mymodel"])
def test_plan_and_compare(name: str, folder: Path) -> None:
    ok(run(*RUNNER, "plan", name, "--gpus", "2", "--memory", "1GB", "--json", "plan.json", cwd=folder))
    planned = {layout["name"] for layout in json.loads((folder / "plan.json").read_text())["layouts"]}
    assert {"ddp 2", "zero1 2", "fsdp 2", *(["tp 2", "pp 2"] if name == "mymodel" else [])} <= planned
    distances, left_out = compared(folder, name, ENGINES[name])
    assert list(distances) == [*ENGINES[name], "alone"]
    assert not left_out
    assert all(one < 1e-12 for engine, one in distances.items() if engine not in ("local-sgd", "alone"))


@pytest.mark.parametrize("name", ["mywork", "mymodel"])
def test_strategies_config_resume_export_and_report(name: str, folder: Path, turns: Turns, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("max_steps = 2\nglobal_batch_size = 32\n")
    config = [f"--config={tmp_path / 'settings.toml'}", "--dtype=float64"]
    for number, layout in enumerate(LAYOUTS[name]):
        place = tmp_path / f"run-{number}"
        ok(turns(2, name, *config, f"--checkpoint-dir={place}", *layout.split(), cwd=folder))
        more = ["--max-steps=4", "--resume", *LAYOUTS[name][number - 1].split()]  # by another layout
        ok(turns(2, name, *config, f"--checkpoint-dir={place}", *more, cwd=folder))
        assert losses(place) == pytest.approx(losses(tmp_path / "run-0"), rel=1e-9)
        assert len(losses(place)) == 4
    ok(run(*RUNNER, "checkpoint", "export", str(tmp_path / "run-2"), str(tmp_path / "weights.safetensors")))
    ok(run(*RUNNER, "report", str(tmp_path / "run-2"), "--output", str(tmp_path / "page.html")))


def test_a_loader_makes_its_own_batches_with_as_many_data_ranks_only(folder: Path) -> None:
    distances, left_out = compared(folder, "loaded", ["ddp", "zero1", "pp2"], "--micro-batches", "2")
    assert distances["zero1"] < 1e-12
    (why,) = left_out.values()
    assert why.startswith("n/a: its steps have 16 samples, and those of data parallelism 32")


def test_scale_measures_what_a_loader_gives(folder: Path) -> None:
    short = ["--ranks=1,2", "--steps=3", "--warmup=1", "--rounds=1", "--json=scale.json"]
    ok(run(*RUNNER, "scale", *short, "loaded", cwd=folder, MPIRUN=mpirun_path()))
    sizes = json.loads((folder / "scale.json").read_text())["sizes"]
    assert [one["batch"] for one in sizes] == [16, 32]


def test_batches_of_any_form_are_planned_and_compared(folder: Path) -> None:
    (folder / "dicts.py").write_text(
        (folder / "mymodel.py")
        .read_text()
        .replace(
            "loss=nn.functional.mse_loss", "batch_loss=lambda model, x: (model(x['in']) - x['out']).square().mean()"
        )
        .replace(
            "plan=PLAN,", "plan=PLAN, collate_fn=lambda pairs: dict(zip(('in', 'out'), map(torch.stack, zip(*pairs)))),"
        )
    )
    for name in ("mymodel", "dicts"):
        words = ["--gpus", "2", "--memory", "1GB", "--pp", "1", "--json", f"{name}.json"]
        ok(run(*RUNNER, "plan", name, *words, cwd=folder))
    pairs, dicts = (json.loads((folder / f"{name}.json").read_text())["layouts"] for name in ("mymodel", "dicts"))
    memory = [{one["name"]: one["memory"] for one in layouts} for layouts in (pairs, dicts)]
    assert memory[0].keys() == memory[1].keys()
    distances, left_out = compared(folder, "dicts", ["ddp", "zero1", "tp2", "bare", "pp2"])
    assert all(distances[name] < 1e-12 for name in ("zero1", "tp2", "bare"))
    (why,) = left_out.values()
    assert "the task's loss calls the model itself (batch_loss)" in why


@pytest.mark.parametrize(("script", "tool"), [("own_loop", "plan --gpus 2 --memory 1GB"), ("ddp_training", "compare")])
def test_a_script_is_refused_in_a_line_by_what_takes_a_workload(script: str, tool: str, tmp_path: Path) -> None:
    name, *options = tool.split()
    done = run(*RUNNER, name, path_of(script), *options, cwd=tmp_path)
    refused(done, f"{name} takes a module with main(run, argv)")


def test_a_workload_with_a_loop_of_its_own_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "looping.py").write_text(
        "import runner, torch\n"
        "def main(run, options: runner.Settings):\n"
        "    run.prepare(torch.nn.Linear(2, 1), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))\n"
    )
    for words in (["plan", "looping", "--gpus", "2", "--memory", "1GB"], ["compare", "looping"]):
        refused(run(*RUNNER, *words, cwd=tmp_path), "looping has a loop of its own")
