"""What a guard waits for: signals, as events in a pipe, and other ends of pipes."""

from __future__ import annotations

import os
import select
import signal
import struct

# The first end a job; the others inform the program. Both are passed to the worker only: if SIGTERM ended its data
# loaders, a checkpoint on SIGTERM would fail. Its child processes get SIGTERM after it has ended.
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
TELLS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
WATCHED = (*ENDS, *TELLS, signal.SIGCHLD)
EVENT = struct.Struct("=iqi")  # a signal, the process that sent it, and si_code (above 0: the kernel sent it)


def hear(events: int) -> None:
    """Write every signal to this process to a pipe, with its sender, which a signal handler would not know."""
    while True:
        if hasattr(signal, "sigwaitinfo"):
            received = signal.sigwaitinfo(WATCHED)
            event = received.si_signo, received.si_pid, received.si_code
        else:  # not Linux
            event = signal.sigwait(WATCHED), 0, 0
        os.write(events, EVENT.pack(*event))


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
