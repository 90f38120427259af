"""make gpu: its parts, with small models on the CPU. What it measures on a card is for a machine that has one."""

from __future__ import annotations

import sys

import pytest

from tests.campaigns.gpu.__main__ import Campaign
from tests.launching import ROOT, run

pytestmark = pytest.mark.needs("workloads.llama", "mpi4py")


def test_its_rehearsal_measures_each_way_to_train() -> None:
    campaign = Campaign("cpu", 1)
    rows = campaign.speeds()
    assert campaign.notes == []
    assert [row[:2] for row in rows] == [
        [model, way] for model in ("resnet18", "debug") for way in ("runner", "plain loop", "torchrun, DDP")
    ]
    assert all(row[2][0].isdigit() and float(row[3]) > 0 for row in rows)


def test_its_rehearsal_measures_starts_copies_and_memory() -> None:
    campaign = Campaign("cpu", 1)
    starts, copies, memory = campaign.starts(), campaign.copies(), campaign.memory()
    assert campaign.notes == []
    assert [way for way, _ in starts] == ["python", "runner", "torchrun"]
    assert [size for size, _ in copies] == ["65,536", "1,048,576", "67,108,864"]
    assert memory == [["Llama debug", "0.01 GB", "no GPU"]]


def test_a_command_that_fails_is_noted_and_the_next_one_runs() -> None:
    campaign = Campaign("cpu", 1)
    assert campaign.run("python3", "-c", "import sys; sys.exit('no such card')") == ""
    assert campaign.notes == ["exit code 1: `-c import sys; sys.exit('no such card')`: no such card"]
    assert campaign.run("python3", "-c", "print(1)") == "1\n"


def test_without_a_gpu_it_says_how_to_rehearse() -> None:
    done = run(sys.executable, "-m", "tests.campaigns.gpu", cwd=ROOT, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "make gpu: torch finds no GPU here; --device cpu rehearses",
    )
