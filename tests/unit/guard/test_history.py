"""The record of a rank's states over time: few lines, from the first state to the last."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace

from runner.guard.report.board import Board
from runner.guard.report.history import History
from runner.guard.report.state import StateFile
from runner.guard.settings import Watched
from runner.hardware.nvml import GpuMeter


def test_a_long_run_has_few_lines_from_its_first_to_its_last_state() -> None:
    history, texts = History(), list[str]()
    for number in range(100_000):  # two days
        if text := history.add({"time": 2.0 * number + 1, "step": number}, is_last=number == 99_999):
            texts.append(text)
    steps = [json.loads(line)["step"] for line in texts[-1].splitlines()]
    assert len(steps) == len(texts) < 1100
    assert (steps[:3], steps[-1]) == ([0, 1, 2], 99_999)
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) < 100_000 / 100


def test_a_line_has_what_is_known() -> None:
    text = History().add({"time": 1_763_841_600.25, "phase": "training", "gpu": None, "rank": 3})
    assert text == '{"time": 1763841600.25, "phase": "training"}\n'


def test_the_guard_leaves_it_beside_the_state(tmp_path: Path) -> None:
    state = StateFile(Watched(rendezvous_timeout=1.0, log_folder=tmp_path, names={"rank": 3}))
    state.begin(board := Board(), os.getpid())
    with board.training():
        board.step(1, 2, 1, 1, own=0.002, data=0.001)
        board.step(2, 2, 1, 1, own=0.002, data=0.001)
    state.end(0, "")
    last = json.loads((tmp_path / "state" / "rank-00003.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["step"], last["own_seconds"], last["data_seconds"]) == ("ended", 2, 0.002, 0.001)


def test_a_driver_that_tells_no_utilisation_leaves_the_memory() -> None:
    gpu = GpuMeter("GPU-1")
    calls = {"nvmlInit": None, "nvmlDeviceGetHandleByUUID": 1, "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7)}
    gpu._library = SimpleNamespace(**{name: lambda *_, found=found: found for name, found in calls.items()})
    assert gpu.usage() == {"gpu_memory": 7}
    gpu._library.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=50)
    assert gpu.usage() == {"gpu_memory": 7, "gpu": 50}
