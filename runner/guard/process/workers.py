"""The workers of a host's ranks, as the agent knows them: those that the importer is to be asked for, and those that have not ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from runner.guard.process.child import Child
from runner.guard.process.importer import Importer
from runner.guard.rank import Rank

_UNANSWERED = 16  # requests to the importer: with more, both could wait for the other to read


class Workers:
    """Ranks' threads add and cancel them; the agent's main thread does the rest. ``wake`` wakes it."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._number = 0
        self._workers: dict[int, tuple[Rank, Child, dict[str, Any], list[int]]] = {}  # by number
        self._asked: list[int] = []  # those that are to be forked

    @property
    def are_asked(self) -> bool:
        """Whether any is to be forked."""
        return bool(self._asked)

    def processes(self) -> set[int]:
        """Return the process ids of the workers that were forked."""
        with self._lock:
            return {child.process for _, child, *_ in self._workers.values() if child.process}

    def fork(self, rank: Rank, child: Child, described: dict[str, Any], descriptors: list[int]) -> None:
        """Have a worker forked. Called in a rank's thread."""
        with self._lock:
            self._number += 1
            number = self._number
            described = described | {"worker": number, "argv": sys.argv, "orig_argv": sys.orig_argv}
            self._workers[number] = rank, child, described, descriptors
            self._asked.append(number)
            child.cancel, child.withdraw = lambda: self._cancel(number), lambda: self._withdraw(number)
        self._wake()

    def _cancel(self, number: int) -> None:
        """A worker is not to be forked any more, or has ended: its descriptors are about to be closed. Called in a rank's thread."""
        with self._lock:
            self._forget(number)

    def _withdraw(self, number: int) -> bool:
        """Withdraw a fork that the importer was not asked for yet. Return whether that was so. Called in a rank's thread."""
        with self._lock:
            return number in self._asked and self._forget(number) is not None

    def _forget(self, number: int) -> tuple[Rank, Child] | None:
        if number in self._asked:
            self._asked.remove(number)
        found = self._workers.pop(number, None)
        return found and found[:2]

    def ask(self, importer: Importer) -> None:
        """Have those forked that are to be, as many as the importer takes now."""
        with self._lock:
            room = _UNANSWERED - importer.unanswered
            asked, self._asked = self._asked[:room], self._asked[room:]
            for number in asked:
                _, child, described, descriptors = self._workers[number]
                try:
                    importer.start(described, descriptors)
                    importer.unanswered += 1
                except OSError as error:
                    child.problem, child.status = f"cannot be started: {error.strerror}", 1 << 8
                    child.wake()

    def note_start(self, message: dict[str, Any]) -> None:
        """The importer has forked one, or could not."""
        if "error" in message:
            self._end(message["worker"], f"cannot be started: {message['error']}", 1 << 8)
            return
        with self._lock:  # meanwhile its rank's thread cannot cancel it, and close its files
            rank, child, *_ = self._workers.get(message["worker"], (None, None))
            if rank is None or child is None:  # it was cancelled
                with contextlib.suppress(ProcessLookupError):
                    os.kill(message["process"], signal.SIGKILL)
                return
            child.process = message["process"]
            rank.tell_proxy(child)
            child.give()
        rank.events.put(0)

    def note_end(self, process: int, status: int) -> None:
        """A child of the importer has ended."""
        for number, (_, child, *_) in list(self._workers.items()):
            if child.process == process:
                self._end(number, "", status)

    def end_all(self, problem: str, status: int) -> None:
        """They have ended with the importer, or cannot be forked."""
        for number in list(self._workers):
            self._end(number, problem, status)

    def _end(self, number: int, problem: str, status: int) -> None:
        with self._lock:
            found = self._forget(number)
        if found is not None:
            rank, child = found
            child.problem, child.status = problem, status
            rank.events.put(0)
