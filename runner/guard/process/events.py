"""Events for which a rank's thread waits: signals to its proxy, messages, the importer's reports, and the launcher's end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable

from runner.base.process_stat import process_stat
from runner.guard.process.proxy import EVENT

_LOOK_SECONDS = 1.0  # seconds between two looks at a launcher whose end the kernel does not tell


class Events:
    """Each is written to a pipe, by whichever thread has it."""

    def __init__(self) -> None:
        self._signals, self._put = os.pipe()
        self._messages, self._wake = os.pipe()
        for end in (self._signals, self._put, self._messages, self._wake):
            os.set_blocking(end, False)
        self._lock, self._is_open = threading.Lock(), True  # a pipe that is closed has given its number away
        self._end_of_launcher: int | None = None
        self.is_orphan = False  # the launcher has ended
        self.has_lost_proxy = False
        self._ready: list[int] = []

    def watch(self, launcher: int) -> None:
        """Wait for the end of this process, too; 0 for none."""
        self._end_of_launcher = _end_of(launcher)

    def put(self, number: int, sender: int = 0, code: int = 0) -> None:
        """A signal has come to the proxy; 0: only that something has changed."""
        self._write(self._put, EVENT.pack(number, sender, code))

    def wake(self) -> None:
        """There is a message."""
        self._write(self._wake, b"m")

    def _write(self, pipe: int, content: bytes) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # it is full: whoever reads it is woken anyway
            if self._is_open:
                os.write(pipe, content)

    def wait(self, within: float, *more: int) -> None:
        """Wait for one of them, or until something can be read from one of these file descriptors."""
        sources = [self._signals, self._messages, *more]
        if self._end_of_launcher and not self.is_orphan:
            sources.append(self._end_of_launcher)
        self._ready = readable(sources, within)

    def wait_for_messages(self, within: float) -> None:
        """Wait for nothing else."""
        readable([self._messages], within)

    def signals(self) -> list[tuple[int, int, int]]:
        """Return the signals since the last call: number, sender and si_code of each."""
        found = read(self._signals)
        return [event for event in EVENT.iter_unpack(found or b"") if event[0]]

    def has_messages(self) -> bool:
        """Whether there may be messages since the last call."""
        return bool(read(self._messages))

    def has_lost_launcher(self) -> bool:
        """Whether the launcher has ended. True once."""
        is_lost = self._end_of_launcher in self._ready and not self.is_orphan
        self.is_orphan = self.is_orphan or is_lost
        return is_lost

    def close(self) -> None:
        """Nothing is waited for any more."""
        with self._lock:
            self._is_open = False
            for end in (self._signals, self._put, self._messages, self._wake):
                os.close(end)
        if self._end_of_launcher:
            os.close(self._end_of_launcher)


def readable(sources: Iterable[int], within: float | None) -> list[int]:
    """Wait for so many seconds, None: for ever. Return the file descriptors that can be read. (select() takes none above 1,023.)"""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    return [source for source, _ in poll.poll(None if within is None else 1000 * within)]


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def read(pipe: int) -> bytes | None:
    """The pipe's content: None if it is empty, b"" if no process can write to it any more."""
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return None


def _end_of(process: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where it is not known."""
    if not process:
        return None
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        ended, alive = os.pipe()
        os.close(alive)
        return ended
    except (AttributeError, OSError):  # Linux before 5.3, as in RHEL 8, has none
        return _end_by_looking(process)


def _end_by_looking(process: int) -> int | None:
    """Watch a process's end, as ``_end_of`` does, by a thread that looks every second."""
    started = _start_of(process)
    if started is None:  # it cannot be seen (hidepid), which is not its end
        return None
    ended, alive = os.pipe()

    def look() -> None:
        while _start_of(process) == started:
            time.sleep(_LOOK_SECONDS)
        os.write(alive, b"x")  # a close would not show: forked processes hold this end, too

    threading.Thread(target=look, name="launcher", daemon=True).start()
    return ended


def _start_of(process: int) -> str | None:
    """Return a process's start time, which tells it from a later one with its id; None if it has ended."""
    stat = process_stat(process)
    return None if stat is None or stat.has_ended else stat.started
