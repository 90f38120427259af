"""A host's importer as the agent sees it, and the workers that are forked of it for the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import IO, Any

from runner.guard.hang.stacks import new_file
from runner.guard.process.events import name_of
from runner.guard.process.forks import name_process
from runner.guard.process.importer import Importer, Work, fork_importer
from runner.guard.process.wire import receive
from runner.guard.process.worker import Worker

_UNANSWERED = 16  # requests to the importer: with more, both could wait for the other to read


class Workers:
    """The importer and its workers. Ranks' threads add and cancel workers; the agent's main thread does the rest."""

    def __init__(self, make: Callable[[], Work], *, wake: Callable[[], object], say: Callable[[str], None]) -> None:
        """Begin without an importer.

        Args:
            make: makes the importer's work, of this process's command line.
            wake: wakes the agent's main thread.
            say: prints a text with a rank's output.
        """
        self._make, self._wake, self._say = make, wake, say
        self.importer: Importer | None = None
        self.has_lost_importer = False  # one was killed, so that this process has its children
        self._stacks = new_file()  # of the importer
        self._name = name_process("runner-agent")  # of the process that the launcher has started
        self._lock = threading.Lock()
        self._number = 0
        self._workers: dict[int, tuple[Worker, dict[str, Any], list[int]]] = {}  # those that have not ended, by number
        self._asked: list[int] = []  # those that are to be forked
        self._work: Work
        self._keep: Collection[int] = ()

    def serve(self, work: Work, keep: Collection[int]) -> None:
        """Fork workers of this launch from now on.

        Args:
            work: what they, and their importer, do.
            keep: descriptors that are not the agent's own, but were there before it.
        """
        self._work, self._keep = work, keep

    def processes(self) -> set[int]:
        """Return the process ids of the workers that were forked."""
        with self._lock:
            return {worker.process for worker, *_ in self._workers.values() if worker.process}

    def shown_importer(self) -> tuple[int, IO[Any]]:
        """Return the importer's process, 0 if there is none, and the file for its stack."""
        return (self.importer.process if self.importer else 0), self._stacks

    def fork(self, worker: Worker, described: dict[str, Any], descriptors: list[int]) -> None:
        """Have a worker forked. Called in a rank's thread."""
        with self._lock:
            self._number += 1
            number = self._number
            described = described | {"worker": number, "argv": sys.argv, "orig_argv": sys.orig_argv}
            self._workers[number] = worker, described, descriptors
            self._asked.append(number)
            worker.cancel, worker.end_unasked = lambda: self._cancel(number), lambda by: self._end_unasked(number, by)
        self._wake()

    def _cancel(self, number: int) -> None:
        """Forget a worker, whose descriptors are about to be closed. Called in a rank's thread."""
        with self._lock:
            self._forget(number)

    def _end_unasked(self, number: int, by: int) -> bool:
        """End a worker that the importer was not asked for yet, by this signal. Return whether that was so. Called in a rank's thread."""
        with self._lock:
            worker = self._forget(number) if number in self._asked else None
        if worker is None:
            return False
        worker.status = by
        worker.wake()
        return True

    def _forget(self, number: int) -> Worker | None:
        if number in self._asked:
            self._asked.remove(number)
        found = self._workers.pop(number, None)
        return found and found[0]

    def ask(self) -> None:
        """Have those forked that are to be, as many as the importer takes now."""
        if self._asked and self.importer is None:  # the last one was killed
            self.start_importer()
        if self.importer is None or not self.importer.is_ready:
            return
        with self._lock:
            room = _UNANSWERED - self.importer.unanswered
            asked, self._asked = self._asked[:room], self._asked[room:]
            for number in asked:
                worker, described, descriptors = self._workers[number]
                try:
                    self.importer.start(described, descriptors)
                    self.importer.unanswered += 1
                except OSError as error:
                    worker.problem, worker.status = f"cannot be started: {error.strerror}", 1 << 8
                    worker.wake()

    def start_importer(self) -> None:
        """Fork the importer."""
        try:
            self.importer = fork_importer(self._make, self._work, self._stacks, self._name, self._keep)
        except OSError as error:  # no room for one more process
            self._end_all(f"the process that imports for this host's ranks cannot be started: {error.strerror}", 1 << 8)

    def hear(self) -> None:
        """Take what the importer tells."""
        importer, told = self.importer, None
        assert importer is not None
        with contextlib.suppress(OSError):
            told = receive(importer.connection)
        if told is None:
            self.lose_importer()
            return
        message, _ = told
        if "ready" in message:
            importer.is_ready = message["ready"]
            if said := message["said"].decode(errors="replace").rstrip():
                self._say(said)  # once, as each rank would print the same
            if not importer.is_ready:  # its imports cannot be forked, so it has ended; the next one imports nothing
                self._work.import_per_rank(message["why"])
                self._close_importer()
        elif "error" in message:
            importer.unanswered -= 1
            self._end(message["worker"], f"cannot be started: {message['error']}", 1 << 8)
        elif "worker" in message:
            importer.unanswered -= 1
            self._note_start(message["worker"], message["process"])
        else:
            for number, (worker, *_) in list(self._workers.items()):
                if worker.process == message["process"]:
                    self._end(number, "", message["status"])

    def end_importer(self) -> None:
        """End the importer, if there is one; the kernel ends its workers with it."""
        if self.importer is not None:
            os.kill(self.importer.process, signal.SIGKILL)
            self.lose_importer()

    def lose_importer(self) -> None:
        """Note the importer's end; the kernel ends its workers with it."""
        status = self._close_importer()
        self.has_lost_importer = True
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {name_of(-code)}" if code < 0 else f"has ended with code {code}"
        self._end_all(f"the process that has imported for this host's ranks {how}, and its ranks with it", status)

    def _close_importer(self) -> int:
        """Wait for the importer's end. Returns its status."""
        assert self.importer is not None
        self.importer.connection.close()
        process, self.importer = self.importer.process, None
        return os.waitpid(process, 0)[1]

    def _note_start(self, number: int, process: int) -> None:
        with self._lock:  # meanwhile its rank's thread cannot cancel it, and close its files
            worker = self._workers[number][0] if number in self._workers else None
            if worker is None:  # it was cancelled
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                return
            worker.process = process
            worker.give()
        worker.wake()

    def _end_all(self, problem: str, status: int) -> None:
        """Note that all workers have ended with the importer, or cannot be forked."""
        for number in list(self._workers):
            self._end(number, problem, status)

    def _end(self, number: int, problem: str, status: int) -> None:
        with self._lock:
            worker = self._forget(number)
        if worker is not None:
            worker.problem, worker.status = problem, status
            worker.wake()
