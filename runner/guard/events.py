"""What a guard waits for: signals, messages, and the end of its launcher."""

from __future__ import annotations

import os
import select
import signal
import struct
import threading

from runner.guard.launcher import end_of

# The first end a job; the others inform the program. Both are passed to the worker only: if SIGTERM ended its data
# loaders, a checkpoint on SIGTERM would fail. Its child processes get SIGTERM after it has ended.
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
TELLS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
WATCHED = (*ENDS, *TELLS, signal.SIGCHLD)
_EVENT = struct.Struct("=iqi")  # a signal, the process that sent it, and si_code (above 0: the kernel sent it)


class Events:
    """Signals are taken by a thread, which knows their senders; each becomes an event in a pipe."""

    def __init__(self, launcher: int) -> None:
        """``launcher``: the process whose end is waited for, 0 for none."""
        self._signals, events = os.pipe()
        self._messages, self.wake = os.pipe()  # wake: where a byte is written for each message
        for end in (self._signals, self._messages):
            os.set_blocking(end, False)
        self.own_ends = (self._signals, events, self._messages, self.wake)  # that only the guard may hold
        self._end_of_launcher = end_of(launcher)
        self.is_orphan = False  # the launcher has ended
        self._ready: list[int] = []
        threading.Thread(target=_take_signals, args=(events,), daemon=True).start()

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
        """Those that have come since the last call: number, sender and si_code of each."""
        try:
            return list(_EVENT.iter_unpack(os.read(self._signals, 256 * _EVENT.size)))
        except BlockingIOError:
            return []

    def has_messages(self) -> bool:
        """Whether there may be messages since the last call."""
        return bool(read(self._messages))

    def has_lost_launcher(self) -> bool:
        """Whether the launcher has ended. True once."""
        is_lost = self._end_of_launcher in self._ready and not self.is_orphan
        self.is_orphan = self.is_orphan or is_lost
        return is_lost


def _take_signals(events: int) -> None:
    """Write every signal to this process to a pipe, with its sender, which a signal handler would not know."""
    while True:
        if hasattr(signal, "sigwaitinfo"):
            received = signal.sigwaitinfo(WATCHED)
            event = received.si_signo, received.si_pid, received.si_code
        else:  # not Linux
            event = signal.sigwait(WATCHED), 0, 0
        os.write(events, _EVENT.pack(*event))


def readable(sources: list[int], within: float) -> list[int]:
    """Those of the file descriptors from which something can be read. (select() takes none above 1,023.)"""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    return [source for source, _ in poll.poll(1000 * within)]


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
