"""How long a worker gets that is to save and to end."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from runner.guard.process.worker import Worker
from runner.guard.report.board import Board


def worker_with(board: Board) -> Worker:
    messages, _ = os.pipe()
    child: Any = SimpleNamespace(process=0, messages=messages, board=board, group=None)
    return Worker(child, 60.0)


def test_after_a_save_it_has_as_long_to_end_as_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words come up to two seconds after a save, and later where it puts the job back into a queue."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    board = Board()
    worker = worker_with(board)
    worker.complete_rendezvous()
    board.step(1, 9, 1, 1)
    worker.let_save()
    for now[0] in range(400):  # the step: how long it may take is the business of Patience
        assert not worker.is_late()
    board.enter("saving")
    for now[0] in range(400, 440):
        assert not worker.is_late()
    board.enter("done")
    for now[0] in range(440, 469):
        assert not worker.is_late()
    now[0] = 470.0
    assert worker.is_late()


def test_a_worker_that_is_to_end_is_late_also_if_it_meets_the_others_meanwhile() -> None:
    """One that was stopped goes on as its stack is taken."""
    worker = worker_with(Board())
    worker.end(70, 0.0)
    worker.complete_rendezvous()
    assert worker.is_late()
