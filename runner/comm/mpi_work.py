"""Where a group's MPI calls are made, one after the other, and the handles that callers wait on."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from runner.errors import EXIT_FAILURE

_UNSET = timedelta(milliseconds=-1)


class MPIWork(Work):
    """A call that has been handed in, and how it ends."""

    def __init__(self, what: str, results: list[torch.Tensor], limit: float) -> None:
        super().__init__()
        self.what, self.results, self.limit = what, results, limit
        self.deadline = time.monotonic() + limit
        self.error: Exception | None = None
        # Makes the call in the thread that waits for it, if it is the next one and nobody has begun it.
        self.begin: Callable[[], None] | None = None
        self.may_have_callbacks = False
        self.is_over = False
        self._lock = threading.Lock()
        devices: list[int | str | torch.device] = list({result.device for result in results if not result.is_cpu})
        self._end: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        # Only what a callback raises is an error for those who wait in C++, as DDP does; set_exception() is not.
        self._future = self._end.then(self._outcome)

    def succeed(self) -> None:
        self._finish(None)

    def fail(self, error: Exception) -> bool:
        """Returns whether it was not over yet."""
        return self._finish(error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end; the caller's own timeout, where given, brings the deadline forward."""
        begin = self.begin
        if timeout > timedelta(0):
            self.deadline = min(self.deadline, time.monotonic() + timeout.total_seconds())
        elif begin is not None:
            begin()
        self._end.wait()
        if self.error is not None:
            raise self.error
        return True

    def is_done(self) -> bool:
        """Whether its future has been told."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        self.may_have_callbacks = True
        return self._future

    def result(self) -> list[torch.Tensor]:
        return self.results

    def _finish(self, error: Exception | None) -> bool:
        """The first word counts. The program's callbacks run in here."""
        with self._lock:
            if self.is_over:
                return False
            self.is_over, self.error = True, error
        self._end.set_result(None)
        return True

    def _outcome(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.results


class Caller:
    """Makes a group's calls in the order in which they are handed in.

    Asynchronous calls are made in a thread of the group's own. A synchronous one is made in its caller's, where nothing
    is under way: two hand-overs between threads take longer than a small collective. So is one that its caller waits for
    before the thread has begun it. Callbacks run in the group's thread, and what they ask for is made at once there: so all
    ranks make the same calls in the same order.

    MPI's blocking calls cannot be interrupted. One that the thread makes and that is not done in time fails for those who
    wait, and so does all that comes after it: the group's ranks no longer agree on where they are. Where the caller
    itself is in MPI's call nobody can be told, so the process ends, as it does by NCCL's watchdog.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._turn = threading.Lock()  # held by the thread that is in MPI
        self._inline: _Inline | None = None  # what a caller is doing itself
        self._calls: queue.SimpleQueue[tuple[MPIWork, Callable[[], object]] | None] = queue.SimpleQueue()
        self._open: dict[int, MPIWork] = {}  # handed in and not done
        self._lock = threading.Lock()
        self._one_has_ended = threading.Condition(self._lock)
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"mpi4py {label}", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name=f"mpi4py watch {label}", daemon=True).start()

    def hand_in(self, work: MPIWork, call: Callable[[], object]) -> MPIWork:
        if self._broken is not None:
            work.fail(self._broken)
            return work
        if threading.current_thread() is self._thread:
            with self._lock:
                self._open[id(work)] = work
            self._perform(work, call)  # a callback of the call before, which may wait for this one
            return work
        work.begin = functools.partial(self._begin, work, call)
        with self._lock:
            self._open[id(work)] = work
        self._calls.put((work, call))
        return work

    def call_now(self, what: str, limit: float, call: Callable[[], object]) -> bool:
        """Make a call in this thread, if nothing is under way. Returns whether it was made.

        Raises:
            Exception: what the call raises.
        """
        with self._lock:
            if self._open or self._inline is not None or self._broken is not None:
                return False
            self._inline = _Inline(what, limit, time.monotonic() + limit)
        try:
            with self._turn:
                call()
        finally:
            self._inline = None
        return True

    def stop(self, limit: float) -> bool:
        """Do what has been handed in, then end the thread.

        Returns:
            Whether nobody is in MPI and all works are done, within so many seconds.
        """
        deadline = time.monotonic() + (0.0 if self._broken is not None else limit)
        self._calls.put(None)
        self._thread.join(deadline - time.monotonic())
        # A caller may be in MPI itself.
        if self._thread.is_alive() or not self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        self._turn.release()
        with self._lock:  # a caller that has made its call itself has yet to say that it is done
            return self._one_has_ended.wait_for(
                lambda: all(work.is_done() for work in self._open.values()), max(0.0, deadline - time.monotonic())
            )

    def _run(self) -> None:
        while True:
            entry = self._calls.get()
            if entry is None:
                return
            work, call = entry
            with self._lock:
                is_mine, work.begin = work.begin is not None, None
            if is_mine:
                self._perform(work, call)
            del entry, work, call  # what they hold is the caller's, and must not wait for the next call

    def _begin(self, work: MPIWork, call: Callable[[], object]) -> None:
        """Make the call in this thread, if it is the only one, nobody has begun it, and no callbacks follow."""
        with self._lock:
            others = len(self._open) > 1 or self._inline is not None
            if work.begin is None or work.may_have_callbacks or others or self._broken is not None:
                return
            work.begin = None
            self._inline = _Inline(work.what, work.limit, work.deadline)
            self._turn.acquire()  # it is free; what is handed in from now on comes after
        try:
            error = self._error_of(call)
        finally:
            self._turn.release()
            self._inline = None
        self._end(work, error)

    def _perform(self, work: MPIWork, call: Callable[[], object]) -> None:
        with self._turn:
            error = self._error_of(call)
        self._end(work, error)

    def _error_of(self, call: Callable[[], object]) -> Exception | None:
        if self._broken is None:
            try:
                call()
            except Exception as raised:
                return self._broken or raised
        return self._broken

    def _end(self, work: MPIWork, error: Exception | None) -> None:
        if error is None:
            work.succeed()
        else:
            work.fail(error)
        with self._lock:  # only now: what a callback asks for comes before what other threads do
            del self._open[id(work)]
            self._one_has_ended.notify_all()

    def _watch(self) -> None:
        while self._thread.is_alive() or self._inline is not None:
            time.sleep(0.2)
            now = time.monotonic()
            with self._lock:
                late = [work for work in self._open.values() if now > work.deadline and not work.is_over]
                inline = self._inline
            if inline is not None and now > inline.deadline:
                _end_process(self._label, _too_late(inline))
            for work in late:
                error = _too_late(work)
                if work.fail(error):
                    self._broken = error


class _Inline(NamedTuple):
    what: str
    limit: float  # seconds
    deadline: float


def _too_late(work: MPIWork | _Inline) -> Exception:
    return torch.distributed.DistBackendError(
        f"{work.what} was not done within {work.limit:.0f} s; a rank is missing, slow, or in another call; allow more "
        "with --collective-timeout or init_process_group(timeout=…)"
    )


def _end_process(label: str, error: Exception) -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    print(f"runner: {label} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(EXIT_FAILURE)


def seconds_of(timeout: Any, default: float) -> float:
    """The seconds of a call's own timeout, or the group's."""
    if isinstance(timeout, timedelta) and timeout not in (_UNSET, timedelta(0)):
        return timeout.total_seconds()
    return default
