"""SIGUSR1 before a training listens to it: the warning of a scheduler must not end a job that has yet to begin."""

from __future__ import annotations

import signal
from types import FrameType


class EarlySignal:
    """Notes a signal, for the training that begins later."""

    def __init__(self) -> None:
        self.number = 0  # the signal that has come

    def receive(self, number: int, _: FrameType | None) -> None:
        """A signal's handler."""
        self.number = number

    def listen(self) -> None:
        """Note SIGUSR1 from now on, unless the program does something with it."""
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self.receive)


EARLY = EarlySignal()
