"""What a guard writes about its rank."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from runner.guard.process import forks
from runner.guard.report.board import Board
from runner.guard.report.console import Files
from runner.guard.report.rank_state import History, StateFile
from runner.guard.settings import Watched
from runner.hardware.nvml import GpuMeter
from tests.polling import LIMIT, poll_until


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files(None)
    yield made
    made.close(60.0)


def state_of_this_process(files: Files, folder: Path, **names: int) -> StateFile:
    """With this process as the worker."""
    state = StateFile(Watched(rendezvous_timeout=1.0, log_folder=folder, names=names), files)
    state.begin(Board(), os.getpid())
    return state


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_nvml_or_a_driver_nothing_is_said_of_a_gpu(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    gpu = GpuMeter("GPU-00000000-0000-0000-0000-000000000000")
    assert gpu.usage() == {}
    state = state_of_this_process(files, tmp_path, rank=3, size=4)
    state.gpu = gpu
    state.end(0, "")
    files.close(60.0)
    found = json.loads((tmp_path / "state" / "rank-00003.json").read_text())
    assert (found["format"], found["rank"], found["exit_code"]) == (1, 3, 0)
    assert found["gpu"] is None
    assert found["gpu_memory"] is None


@pytest.mark.parametrize("hangs", [False, True])
def test_no_process_is_forked_while_a_thread_is_in_the_driver(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """There is no driver here: what takes its place takes 0.1 s, or hangs, which is not waited for."""
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.1 if hangs else 30.0)
    is_inside, is_over = Event(), Event()

    def call() -> None:
        is_inside.set()
        is_over.wait(30 if hangs else 0.1)
        is_inside.clear()

    gpu = GpuMeter("GPU-00000000-0000-0000-0000-000000000000")
    gpu._library = SimpleNamespace(nvmlInit=call)
    state = state_of_this_process(files, tmp_path, rank=0)
    state.stop()  # its own thread
    state.gpu = gpu
    thread = Thread(target=state._usage)
    thread.start()
    is_inside.wait()
    with forks.outside_of_libraries():
        child = os.fork()
    if child == 0:
        os._exit(20 + is_inside.is_set())
    with forks.in_library():  # a driver that hangs does not hold up another thread
        assert is_inside.is_set() == hangs
    is_over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20 + hangs
    assert gpu.usage() == {}


def test_the_worker_is_measured_while_it_runs(tmp_path: Path, files: Files) -> None:
    state = state_of_this_process(files, tmp_path, rank=0)
    path = tmp_path / "state" / "rank-00000.json"
    poll_until(path.exists, LIMIT, "the guard writes the state")
    assert json.loads(path.read_text())["memory"] > 1 << 20
    state.end(7, "why", "SIGSEGV")
    files.close(60.0)
    found = json.loads(path.read_text())
    assert (found["phase"], found["exit_code"], found["what"]) == ("ended", 7, "why")
    assert found["ended_by"] == "SIGSEGV"


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


def test_the_guard_leaves_it_beside_the_state(tmp_path: Path, files: Files) -> None:
    state = StateFile(Watched(rendezvous_timeout=1.0, log_folder=tmp_path, names={"rank": 3}), files)
    state.begin(board := Board(), os.getpid())
    with board.training():
        board.step(1, 2, 1, 1, own=0.002, data=0.001)
        board.step(2, 2, 1, 1, own=0.002, data=0.001)
    state.end(0, "")
    files.close(60.0)
    last = json.loads((tmp_path / "state" / "rank-00003.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["step"], last["own_seconds"], last["data_seconds"]) == ("ended", 2, 0.002, 0.001)


def test_a_driver_that_tells_no_utilisation_leaves_the_memory() -> None:
    gpu = GpuMeter("GPU-1")
    calls = {"nvmlInit": None, "nvmlDeviceGetHandleByUUID": 1, "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7)}
    gpu._library = SimpleNamespace(**{name: lambda *_, found=found: found for name, found in calls.items()})
    assert gpu.usage() == {"gpu_memory": 7}
    gpu._library.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=50)
    assert gpu.usage() == {"gpu_memory": 7, "gpu": 50}
