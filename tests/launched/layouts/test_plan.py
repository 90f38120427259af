"""What ``plan`` says about memory, against what ranks have in a real run; and how it answers to what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import PROGRAMS, ROOT, RUNNER, ok, run
from tests.layouts import needing
from tests.results import refused
from tests.terminal import on_terminal
from tests.turns import Turns

pytestmark = pytest.mark.needs("plan")

LAYOUTS = PROGRAMS / "layouts"
WORKLOAD = ["planned_llama", "--size", "debug", "--length", "16", "--batch-size", "8"]
PARTS = ("parameters", "gradients", "optimizer")


def plan(*arguments: str, path: Path = LAYOUTS) -> Any:
    return run(*RUNNER, "plan", *arguments, cwd=path, PYTHONPATH=str(ROOT))


def planned(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "plan.json"
    ok(plan(*arguments, "--json", str(file)))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# arguments of a run on four ranks: the layout's name in the plan
RUNS = {
    "--strategy ddp": "ddp 4",
    "--strategy zero1": "zero1 4",
    "--strategy fsdp": "fsdp 4",
    "--strategy fsdp --replicate 2": "fsdp 2×2",
    "--strategy fsdp --tp 2": "fsdp 2, tp 2",
    "--strategy fsdp --pp 2": "fsdp 2, pp 2",
    "--tp 2 --pp 2": "tp 2, pp 2",
}


@needing(*((4, options) for options in RUNS), also=["plan of sharded layers"])
def test_memory_is_that_of_a_run(turns: Turns, tmp_path: Path) -> None:
    found = planned(tmp_path, *WORKLOAD, "--gpus", "4", "--memory", "1GB")
    layouts = {layout["name"]: layout for layout in found["layouts"]}
    jobs = [f"{' '.join(WORKLOAD[1:])} {options}" for options in RUNS]
    done = ok(turns(4, "planned_llama", *jobs))
    lines = [json.loads(line[9:]) for line in done.stdout.splitlines() if line.startswith("measured ")]
    assert [line["arguments"] for line in lines] == jobs
    for line, name in zip(lines, RUNS.values(), strict=True):
        for stage, memory in enumerate(layouts[name]["by_stage"]):
            of_ranks = [one for one in line["ranks"] if one["stage"] == stage]
            for part in PARTS:
                assert memory[part] == pytest.approx(max(one[part] for one in of_ranks), rel=0.02), (name, stage, part)
    whole, shards = (max(sum(one[part] for part in PARTS) for one in lines[index]["ranks"]) for index in (0, 2))
    assert shards <= 1.05 * whole / 4  # fsdp's bytes per rank; ddp has all on each


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("planned_llama --gpus 8 --memory 80XB", "--memory: '80XB'"),
        ("planned_llama --gpus 8 --memory 1G --reserve 100", "'100' is not a share from 0 to below 100 percent"),
        ("planned_llama --gpus 0 --memory 1G", "--gpus: '0'"),
        ("planned_llama --memory 1G", "the following arguments are required: --gpus"),
        ("--gpus 8 --memory 1G", "the following arguments are required: WORKLOAD"),
        ("planned_llama --gpus 8 --nodes 3 --memory 1G", "--nodes 3 does not divide --gpus 8"),
        ("workloads.nothing --gpus 8 --memory 1G", "no workload workloads.nothing: plan takes a module"),
        ("planned_llama --gpus 8 --memory 1G --sizes 7b", "unrecognized arguments: --sizes 7b"),
        ("planned_llama --gpus 8 --memory 1G --tp 3", "tensor(3)"),
        (
            f"{' '.join(WORKLOAD)} --needs-data --gpus 1 --memory 1G",
            "plan cannot follow the model by the shapes of its tensors (",
        ),
        ("planned_llama --gpus 8 --memory 1G --json /nowhere/x.json", "--json: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: str, expected: str, tmp_path: Path) -> None:
    refused(run(*RUNNER, "plan", *arguments.split(), cwd=tmp_path, PYTHONPATH=f"{ROOT}:{LAYOUTS}"), expected)


@pytest.mark.needs("plan of sharded layers")
def test_a_terminal_gets_a_table_and_files_the_rest(tmp_path: Path) -> None:
    options = ["--gpus", "8", "--nodes", "2", "--memory", "4MB", "--json", str(tmp_path / "p.json")]
    seen = on_terminal(80, *RUNNER, "plan", *WORKLOAD, *options, cwd=LAYOUTS)
    assert max(len(line) for line in seen if str(tmp_path) not in line) <= 80
    found = json.loads((tmp_path / "p.json").read_text())
    assert (found["memory"], found["usable"]) == (4_000_000, 3_600_000)  # a tenth is left
    layouts = found["layouts"]
    assert len({layout["name"] for layout in layouts}) == len(layouts)
    assert any(layout["degrees"]["tensor"] == 4 for layout in layouts)
    assert not any(layout["degrees"]["tensor"] == 8 for layout in layouts)  # it would go across hosts
    assert {layout["options"]["precision"] for layout in layouts} == {"bf16"}
    again = {layout["options"]["activation_checkpointing"] for layout in layouts if not layout["fits"]}
    assert again == {"full"}  # nothing less is left untried
    fitting = [layout["fits"] for layout in layouts]
    assert fitting == sorted(fitting, reverse=True)
    assert found["recommended"] == layouts[0]
    assert f"take {layouts[0]['flags']}" in " ".join(seen)


def test_where_nothing_fits_the_number_of_gpus_that_it_takes_is_said(tmp_path: Path) -> None:
    model = [*WORKLOAD, "--precision", "fp32", "--activation-checkpointing", "none", "--strategy", "fsdp", "--tp", "1"]
    model += ["--pp", "1"]
    usable = {n: planned(tmp_path, *model, "--gpus", str(n), "--memory", "1GB")["layouts"] for n in (4, 5)}
    smallest = {n: min(layout["memory"]["total"] for layout in layouts) for n, layouts in usable.items()}
    assert smallest[5] < smallest[4]
    memory = str((smallest[4] + smallest[5]) // 2)
    file = tmp_path / "p.json"
    done = ok(plan(*model, "--gpus", "2", "--memory", memory, "--reserve", "0", "--json", str(file)))
    assert "take 5 GPUs (" in done.stdout
    assert json.loads(file.read_text())["recommended"] is None


# torchtitan's benchmarks/llama3_h100_202412_torchtitan.md (commit 31a17bf), of Llama 3.1 8B on H100 SXM of 96 GB at 2.4 TB/s and 500 W, 8 on a
# host, 400 Gb/s for each; by fsdp with bf16 over fp32 shards, 8,192 tokens, two samples per GPU, selective recomputation.
LLAMA = ["workloads.llama", "--size", "8b", "--length", "8192", "--batch-size", "2"]
FSDP = ["--strategy", "fsdp", "--precision", "bf16", "--activation-checkpointing", "selective"]
PUBLISHED = {8: 82.4, 128: 67.0}  # peak memory in GiB, by GPUs


def test_memory_is_what_torchtitan_has_published(tmp_path: Path) -> None:
    for gpus, measured in PUBLISHED.items():
        arguments = ["--tp", "1", "--pp", "1", "--gpus", str(gpus), "--nodes", str(gpus // 8), "--memory", "96GB"]
        found = planned(tmp_path, *LLAMA, *FSDP, *arguments)
        (whole,) = (one for one in found["layouts"] if one["name"] == f"fsdp {gpus}")
        assert whole["memory"]["total"] / 2**30 == pytest.approx(measured, rel=0.15)
