"""The worker's progress, and the ranks that have ended before it, in memory that it shares with its guard: neither waits for the other."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from runner.guard.hang.stacks import new_file

# warm-up: of a training or evaluation, what may take long where it comes first: starting to read data, compiling, connecting.
# done: with the training; the program may go on.
ENDED = "ended"  # the rank, as its guard says in its state
PHASES = ("starting", "training", "evaluating", "saving", "done", "warm-up", "step hook", "epoch hook", ENDED)

_FORM = struct.Struct("=dqqqqqdddd")  # of Progress
MOST_ENDED = 8  # ranks that are named
_ENDED = struct.Struct(f"={1 + MOST_ENDED}q")  # their number, then the ranks
_SHARE = 0.1  # of the last step in the mean of the step times
_EVERY = 20  # steps
_TIMED = ("training", "step hook")  # the phases whose time is that of steps
_WITHIN_INTERVAL = (*_TIMED, "warm-up")


class Progress(NamedTuple):
    """How far a worker has come. Numbers are 0 where they are not known; a loss that is not known is NaN.

    A tuple, because it is made in each step: a dataclass takes several times as long.
    """

    at: float = 0.0  # when it was reported, by time.monotonic()
    phase: str = PHASES[0]
    step: int = 0
    steps: int = 0  # of the whole training; 0 if it is not known
    epoch: int = 0  # the first is 1
    epochs: int = 0
    loss: float = float("nan")
    step_seconds: float = 0.0  # a moving average
    own_seconds: float = 0.0  # of the part of a step in which a rank waits for no other; a moving average
    data_seconds: float = 0.0  # of the part of that in which it waits for a batch; a moving average

    @property
    def is_in_training(self) -> bool:
        """Whether a training has begun and not ended."""
        return self.phase not in ("starting", "done")


class Board:
    """Memory that is made before the fork: the worker writes its progress, the guard the ranks that have ended."""

    def __init__(self, file: int | None = None) -> None:
        """``file``: an existing board's; without it a new board is made, whose ``file`` is its own."""
        size = _FORM.size + _ENDED.size
        is_new = file is None
        if file is None:
            with new_file() as new:
                file = os.dup(new.fileno())
            os.truncate(file, size)
        self.file = file
        self._memory = mmap.mmap(self.file, size)
        self.process = 0  # the worker's
        self.began = time.monotonic()  # when the job did, also where this worker has taken another's place
        self._last = Progress()
        self._every = _EVERY
        self._start_interval()
        if is_new:
            self._write(self._last)

    def step(
        self,
        step: int,
        steps: int,
        epoch: int,
        epochs: int,
        loss: float | None = None,
        own: float | None = None,
        data: float | None = None,
    ) -> None:
        """Note that a step of the training is done.

        Args:
            loss: the last one known, if that is newer than before.
            own: seconds of it in which this rank waited for no other, if they are known.
            data: seconds of it in which this rank waited for its batch, if they are known.
        """
        now, last = time.monotonic(), self._last
        if last.phase in _TIMED and step > last.step > 0:
            self._seconds += now - last.at
            self._steps += step - last.step
        if own is not None:
            self._own.append(own)
        if data is not None:
            self._data.append(data)
        known = last.loss if loss is None else loss
        means = last.step_seconds, last.own_seconds, last.data_seconds
        self._write(Progress(now, "training", step, steps, epoch, epochs, known, *means))
        if self._steps >= self._every:
            self.complete()

    def complete(self) -> None:
        """Note that all steps so far are done, on the device too: the time since the last call is that of so many steps.

        A GPU's step returns when it is launched, so that the host's time of one step says nothing.
        """
        self.go_on()
        last, steps = self._last, self._steps
        if steps:
            mean = _averaged(last.step_seconds, self._seconds / steps, steps)
            own = _averaged(last.own_seconds, sum(self._own) / len(self._own), steps) if self._own else last.own_seconds
            data = sum(self._data) / len(self._data) if self._data else 0.0
            data = _averaged(last.data_seconds, data, steps) if self._data else last.data_seconds
            self._write(last._replace(step_seconds=mean, own_seconds=own, data_seconds=data))
        self._start_interval()

    def go_on(self) -> None:
        """Note that the worker has come as far as this, as after a micro-batch, and count the time of steps."""
        now, last = time.monotonic(), self._last
        if last.phase in _TIMED:
            self._seconds += now - last.at
        self._write(last._replace(at=now))

    def enter(self, phase: str) -> None:
        """Begin another phase, or go on with it: a batch of an evaluation is done."""
        if phase not in _WITHIN_INTERVAL and self._last.phase in _WITHIN_INTERVAL:
            self.complete()  # the metrics were gathered before, which waits for the device
        self.go_on()
        self._write(self._last._replace(phase=phase))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase in which this context is, and after which the one before goes on."""
        before = self._last.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    @contextmanager
    def training(self, every: int = _EVERY) -> Iterator[Board]:
        """A training that ends in this context, fails, or is left by its loop: not by leaving the program.

        Args:
            every: steps after which the time that they took is known, if ``complete()`` has not been called before.
        """
        self._every = every
        self.enter("warm-up")
        try:
            yield self
        except (Exception, GeneratorExit):  # any error, or a break; not SystemExit, by which a rank leaves early
            self.enter("done")
            raise
        self.enter("done")

    def read(self) -> Progress:
        """Return the worker's last progress."""
        at, phase, *numbers = _FORM.unpack_from(self._memory)
        return Progress(at, PHASES[phase], *numbers)

    def note_end(self, rank: int) -> None:
        """Note that another rank has ended well. Called by the guard."""
        number, *ranks = _ENDED.unpack_from(self._memory, _FORM.size)
        if number < MOST_ENDED:
            ranks[number] = rank
            _ENDED.pack_into(self._memory, _FORM.size, number + 1, *ranks)

    def ended_ranks(self) -> list[int]:
        """Return the first ranks that have ended well, at most 8, as far as the guard knows."""
        number, *ranks = _ENDED.unpack_from(self._memory, _FORM.size)
        return sorted(ranks[:number])

    def _start_interval(self) -> None:
        self._seconds, self._steps = 0.0, 0
        self._own, self._data = list[float](), list[float]()

    def _write(self, new: Progress) -> None:
        self._last = new
        _FORM.pack_into(self._memory, 0, new.at, PHASES.index(new.phase), *new[2:])


def _averaged(mean: float, new: float, steps: int) -> float:
    """Return the moving average after so many steps that took ``new`` on average."""
    return new + (1 - _SHARE) ** steps * (mean - new) if mean else new
