"""Preemption: a signal, or the end of the time limit, asks for a checkpoint at the next step and for the end of the job.

SIGTERM and SIGUSR1 may reach the ranks in different steps, or only one rank, and clocks differ (``--save-every 10min``). So the
ranks agree in a collective, at steps, or batches of an evaluation, that all of them know: some five times per second, and after each
step if the program may stop the training.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from runner.base.early_signals import EARLY
from runner.base.errors import EXIT_REQUEUE, RunnerError, raised_on_all_ranks
from runner.launch.time_limit import margin, time_left
from runner.training.checkpoint.checkpoint_folder import Position, name_of
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.run import Run

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_BETWEEN = 0.2  # seconds between two agreements
_REPEATED = 1.2  # so many times as long as the longest so far the next step and checkpoint may take
_STOP, _TIME_LIMIT = -1, 0  # in place of a signal's number
_REASONS = (_STOP, _TIME_LIMIT, signal.SIGUSR1, signal.SIGTERM)  # of several the last one counts


class Preempted(RunnerError):
    """The training was asked to end, and has saved its state."""

    exit_code = EXIT_REQUEUE

    def __init__(self, reason: str, what: str) -> None:
        """``reason``: the name of a signal, or a text."""
        super().__init__(f"{reason}: {what}", fix="continue with --resume")
        self.signal = reason if reason in signal.Signals.__members__ else None


class Preemption:
    """Requests to all ranks to save or to end. Made by ``listening``.

    Attributes:
        reason: why the training is to save and to end, once the ranks have agreed; None if it continues.
        is_stopped: whether the program itself ends the training, once the ranks have agreed.
    """

    reason: str | None = None
    is_stopped = False

    def __init__(self, run: Run, checkpoints: Checkpoints, left: float | None, least: float = 0.0) -> None:
        """Begin to listen.

        Args:
            left: seconds until the time limit; None if there is none.
            least: seconds before the time limit at which the training is to save at the latest.
        """
        self._run, self._checkpoints, self._least = run, checkpoints, least
        self._asked: int | None = None  # the signal that this rank has received, or _TIME_LIMIT
        self._end = time.monotonic() + (math.inf if left is None else left)
        # The time of the last call, and how much of the time until then was for saving.
        self._called, self._spent = time.monotonic(), checkpoints.spent_seconds
        self._longest_step = 0.0  # seconds from one call to the next
        self._count = 0  # of calls, the same on all ranks
        self._next = 1  # the call of the next agreement
        self._agreed = (0, time.monotonic())  # call and time of the last one

    def stop(self) -> None:
        """Ask for the end of the training, as if this step had been its last."""
        self._asked = _STOP if self._asked is None else self._asked

    def receive(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self._asked = number

    def agree(self, *, now: bool = False) -> bool:
        """Take the requests of any rank. Collective: every rank calls this at the same moments of the training.

        Args:
            now: calls take another time from here on: the ranks agree at once, and in the next one. Otherwise they do at every so
                many calls, and this may be none of them.

        Returns:
            Whether the time for a checkpoint has come.
        """
        self._time_step()
        self._count += 1
        if self.reason is not None or (self._count < self._next and not now):
            return False
        vote = self._vote()
        *asking, saves, interval = self._run.sum(*vote, dimension=None) if self._run.size > 1 else vote
        self._next, self._agreed = self._count + (1 if now else int(interval)), (self._count, time.monotonic())
        for reason, ranks in zip(_REASONS, asking, strict=True):
            if ranks and reason == _STOP:
                self.is_stopped = True
            elif ranks:
                self.reason = "the time limit is near" if reason == _TIME_LIMIT else signal.Signals(reason).name
        return bool(saves)

    def _vote(self) -> list[float]:
        """Return one flag per reason to end, then, from rank 0 only, whether a checkpoint is due and the calls until the next vote."""
        saves, interval = False, 0
        if self._run.is_main:
            now, (last, since) = time.monotonic(), self._agreed
            # The time is up if one more step and a checkpoint might not end before the limit.
            takes = max(self._least, _REPEATED * (self._longest_step + self._checkpoints.longest_seconds))
            if self._asked is None and now + takes > self._end:
                self._asked = _TIME_LIMIT
            saves, calls = self._checkpoints.time_is_due(), self._count - last
            # The calls at most double, because the first steps take longer than others.
            interval = max(1, min(int(_BETWEEN / max((now - since) / calls, 1e-6)), 2 * calls))
        return [*(float(self._asked == reason) for reason in _REASONS), float(saves), float(interval)]

    def _time_step(self) -> None:
        """Note the time since the last call, without the time for checkpoints."""
        now, spent = time.monotonic(), self._checkpoints.spent_seconds
        seconds = now - self._called - (spent - self._spent)
        self._called, self._spent = now, spent
        if self._count:  # the first one starts the data's processes, and may compile
            self._longest_step = max(self._longest_step, seconds)

    def ends(self) -> bool:
        """Return whether the training is to end early. Collective, as ``agree``."""
        self.agree()
        return self.reason is not None


@contextmanager
def listening(run: Run, checkpoints: Checkpoints) -> Iterator[Preemption]:
    """Listen to the signals that a launcher or scheduler sends before it ends a job, unless the program does so itself."""
    passed = time.monotonic() - run.job.board.began
    left = time_left(os.environ, run.job.time_limit, passed, may_ask=run.is_main)
    least = 0.0 if left is None else margin(left, run.job.time_to_save)
    preemption = Preemption(run, checkpoints, left, least)
    free = [number for number in _SIGNALS if signal.getsignal(number) in (signal.SIG_DFL, EARLY.receive)]
    for number in free:
        signal.signal(number, preemption.receive)
    if EARLY.number:
        preemption.receive(EARLY.number, None)
    is_preempted = False
    try:
        yield preemption
    except Preempted:
        is_preempted = True
        raise
    finally:
        # A launcher sends SIGTERM once the first rank has ended, and the exit code has to be this one's.
        after = {signal.SIGTERM: signal.SIG_IGN if is_preempted else signal.SIG_DFL, signal.SIGUSR1: EARLY.receive}
        for number in free:
            signal.signal(number, after[number])


def end_early(run: Run, checkpoints: Checkpoints, position: Position, reason: str) -> NoReturn:
    """Save, and end the job; put it back into the queue if that is asked for. Collective.

    Raises:
        Preempted: on all ranks.
    """
    checkpoints.save(position)
    checkpoints.finish()
    where = f"saved {checkpoints.options.checkpoint_dir / name_of(position.step)}"
    if checkpoints.options.requeue:
        run.on_main(lambda: _requeue(where))
        where += ", back in Slurm's queue"
    with raised_on_all_ranks():
        raise Preempted(reason, where)


def _requeue(where: str) -> None:
    """Put this job back into Slurm's queue. Called on one rank. ``where``: what was done before, for a message."""
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
        problem = "" if done.returncode == 0 else done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise RunnerError(f"--requeue: {where}, but {' '.join(command)} failed: {problem}", fix="submit the job again")
