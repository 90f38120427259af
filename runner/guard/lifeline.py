"""A worker's end of its pipes to the agent that watches it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any

from runner.guard.board import Board
from runner.guard.collectives import Call, answer
from runner.guard.worker_messages import Fails, WorkerMessage, written

_TRACEBACK = 8000  # characters that are kept of it, the last ones: a message fits into a pipe


class Lifeline:
    """What the worker tells, and where it reports its progress.

    Attributes:
        port: at which rank 0's agent listens for the others; 0 on other ranks.
        attempt: how often the ranks were started again.
        origin: the process that the launcher has started for this rank.
    """

    def __init__(self, pipe: int, board: Board, *, asked: int, answers: IO[Any], origin: int) -> None:
        self._pipe, self._asked, self._answers = pipe, asked, answers
        self.board, self.origin = board, origin
        self.port = self.attempt = 0
        self.worker = os.getpid()  # a forked child has the lifeline too, but another process id

    def tell(self, message: WorkerMessage) -> None:
        """Tell the agent something."""
        if isinstance(message, Fails):
            message = replace(message, why=message.why[:500], traceback=message.traceback[-_TRACEBACK:])
        with contextlib.suppress(OSError):
            os.write(self._pipe, written(message))

    def answer_with(self, calls: Callable[[], list[Call]]) -> None:
        """Have a thread tell the agent, when it asks, what this rank has called last in each process group."""
        answer(self._asked, self._answers, calls)
