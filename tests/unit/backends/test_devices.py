"""Each thread that may touch a GPU has this rank's as its current device, and makes no context on GPU 0: with a recorder in place of CUDA."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from runner.backends import flight_recorder
from runner.backends.mpi4py import profiling
from runner.backends.mpi4py.engine import ProgressEngine
from runner.backends.mpi4py.waiting import Cores
from runner.base.in_thread import call_in_thread
from runner.training.checkpoint import checkpoints

OWN = torch.device("cuda:1")


class Recorder:
    """CUDA's current device in each thread, which is 0 at first."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def current_device(self) -> int:
        return getattr(self._of_thread, "index", 0)

    def set_device(self, device: torch.device) -> None:
        self._of_thread.index = device.index


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A process that has GPU 1 as its current device in this thread."""
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("current_device", "set_device"):
        monkeypatch.setattr(torch.cuda, name, getattr(recorder, name))
    recorder.set_device(OWN)
    yield recorder
    profiling._thread.cache_clear()  # it would have that device for ever


def test_of_an_asynchronous_checkpoint(cuda: Recorder) -> None:
    found: list[int] = []
    write = partial(checkpoints._on_device, OWN, lambda: found.append(cuda.current_device()))
    call_in_thread(write).result(60)
    assert found == [1]


def test_of_the_mpi_engine_and_its_records(cuda: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = list[int](), threading.Event()

    def go_on(engine: ProgressEngine, parking: Any, backoff: Any) -> None:
        found.append(cuda.current_device())
        seen.set()
        threading.Event().wait()

    monkeypatch.setattr(ProgressEngine, "_go_on", go_on)
    ProgressEngine(Cores(crowded=False)).wake()
    assert seen.wait(60)
    assert found == [1]
    profiling._thread.cache_clear()
    assert profiling._thread().submit(cuda.current_device).result(60) == 1


def test_the_engine_goes_on_without_a_device_that_fails(cuda: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("no such device")

    seen = threading.Event()
    monkeypatch.setattr(torch.cuda, "set_device", fail)
    monkeypatch.setattr(ProgressEngine, "_go_on", lambda *_: (seen.set(), threading.Event().wait()))
    ProgressEngine(Cores(crowded=False)).wake()
    assert seen.wait(60)


@pytest.mark.parametrize(("has_used_it", "expected"), [(True, 1), (False, 0)])
def test_of_the_answers_to_the_guard(
    has_used_it: bool, expected: int, cuda: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's recorder asks the device. A program that has used no GPU so far gets no context by that."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: has_used_it)
    monkeypatch.setattr(flight_recorder, "last_calls", list)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: (flight_recorder._calls_on("cuda:1"), cuda.current_device())).result(60)
    assert found == ([], expected)
