"""What ``plan`` says about memory, against what ranks have in a real run; and how it answers to what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import ROOT, RUNNER, SCRIPTS, ok, own_lines, run, runner
from tests.terminal import on_terminal

WORKLOAD = ["planned_llama", "--size", "debug", "--length", "16", "--batch-size", "8"]
PARTS = ("parameters", "gradients", "optimizer")


def plan(*arguments: str, path: Path = SCRIPTS) -> Any:
    return run(*RUNNER, "plan", *arguments, cwd=path, PYTHONPATH=str(ROOT))


def planned(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "plan.json"
    ok(plan(*arguments, "--json", str(file)))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# arguments of a run: the layout's name in the plan
RUNS = {
    2: {
        "--strategy ddp": "ddp 2",
        "--strategy zero1": "zero1 2",
        "--strategy fsdp": "fsdp 2",
        "--tp 2": "tp 2",
        "--pp 2": "pp 2",
    },
    4: {
        "--strategy zero1": "zero1 4",
        "--strategy fsdp": "fsdp 4",
        "--strategy fsdp --replicate 2": "fsdp 2×2",
        "--strategy fsdp --tp 2": "fsdp 2, tp 2",
        "--strategy fsdp --pp 2": "fsdp 2, pp 2",
        "--tp 2 --pp 2": "tp 2, pp 2",
    },
}


@pytest.mark.parametrize("ranks", RUNS)
def test_memory_is_that_of_a_run(ranks: int, tmp_path: Path) -> None:
    found = planned(tmp_path, *WORKLOAD, "--gpus", str(ranks), "--memory", "1GB")
    layouts = {layout["name"]: layout for layout in found["layouts"]}
    jobs = [f"{' '.join(WORKLOAD[1:])} {options}" for options in RUNS[ranks]]
    done = ok(runner(ranks, "planned_llama", *jobs, cwd=SCRIPTS, PYTHONPATH=str(ROOT)))
    lines = [json.loads(line[9:]) for line in done.stdout.splitlines() if line.startswith("measured ")]
    assert [line["arguments"] for line in lines] == jobs
    for line, name in zip(lines, RUNS[ranks].values(), strict=True):
        for stage, memory in enumerate(layouts[name]["by_stage"]):
            of_ranks = [one for one in line["ranks"] if one["stage"] == stage]
            for part in PARTS:
                assert memory[part] == pytest.approx(max(one[part] for one in of_ranks), rel=0.02), (name, stage, part)
