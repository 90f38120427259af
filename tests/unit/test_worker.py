"""How long a worker gets that is to save and to end."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from runner.guard.board import Board
from runner.guard.worker import Worker


def test_after_a_save_it_has_as_long_to_end_as_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words come up to two seconds after a save, and later where it puts the job back into a queue."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    messages, _ = os.pipe()
    child: Any = SimpleNamespace(process=0, messages=messages, board=Board(), group=None)
    worker = Worker(child, 60.0)
    worker.complete_rendezvous()
    worker.let_save()
    child.board.enter("saving")
    for now[0] in range(40):
        assert not worker.is_late()
    child.board.enter("done")
    for now[0] in range(40, 69):
        assert not worker.is_late()
    now[0] = 70.0
    assert worker.is_late()
