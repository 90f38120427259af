"""The record of a rank's states over time: its size has a bound, and it is from first to last."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

from runner.guard.board import Board
from runner.guard.files import Files
from runner.guard.history import MOST, History
from runner.guard.messages import State
from runner.guard.settings import Watched
from runner.guard.state import StateFile
from runner.hardware.nvml import GpuMeter
from tests.polling import LIMIT


def test_a_long_run_has_no_more_lines_than_a_short_one_and_its_first_and_last_state() -> None:
    history, written, texts = History(), 0, list[str]()
    for number in range(20_000):
        if text := history.add({"time": float(number), "step": number}, is_last=number == 19_999):
            texts.append(text)
            written += len(text)
    steps = [json.loads(line)["step"] for line in texts[-1].splitlines()]
    assert MOST / 2 <= len(steps) < MOST
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert {later - earlier for earlier, later in itertools.pairwise(steps[:-1])} == {64}
    assert written < 20_000 * 1000  # bytes per state


def test_a_line_is_json_and_has_what_is_known() -> None:
    text = History().add({"time": 1_763_841_600.1239, "phase": "training", "cpu": math.nan, "gpu": None, "rank": 3})
    assert text == '{"format": 1, "time": 1763841600.124, "phase": "training"}\n'


def test_the_guard_leaves_it_beside_the_state(tmp_path: Path) -> None:
    state = StateFile(Watched(rendezvous_timeout=1.0, log_folder=tmp_path, names={"rank": 3}), Files(None))
    state.begin(board := Board(), os.getpid())
    with board.training():
        board.step(1, 2, 1, 1, own=0.002, data=0.001)
        board.step(2, 2, 1, 1, own=0.002, data=0.001)
    state.end(0, "")
    last = json.loads((tmp_path / "state" / "rank-00003.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["step"], last["own_seconds"], last["data_seconds"]) == ("ended", 2, 0.002, 0.001)


def test_that_of_a_rank_with_another_folder_is_written_here(tmp_path: Path) -> None:
    files = Files(None)
    hub = StateFile(Watched(rendezvous_timeout=1.0, log_folder=tmp_path, names={"rank": 0}), files)
    for step in (1, 2):
        hub.take(5, State({"rank": 5, "time": 10.0 * step, "step": step, "exit_code": None}))
    files.close(LIMIT)
    lines = (tmp_path / "state" / "rank-00005.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_gpus_energy_is_in_joules_and_its_lack_leaves_the_rest() -> None:
    gpu = GpuMeter("GPU-1")
    known = {
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
    }
    calls = {"nvmlInit": None, "nvmlDeviceGetHandleByUUID": 1} | known
    library = {name: lambda *_, found=found: found for name, found in calls.items()}
    gpu._library = SimpleNamespace(**library)
    assert gpu.usage() == {"gpu_memory": 7, "gpu": 50}
    gpu._library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1500 * handle
    assert gpu.usage() == {"gpu_memory": 7, "gpu": 50, "gpu_energy": 1.5}
