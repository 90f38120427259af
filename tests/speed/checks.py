"""A step of workloads.mnist with and without what watches it: progress for the guard, whether to end early, and its metrics.

    mpirun -np 2 python -m runner tests.speed.checks [--blocks 100] [--cpu-time]

One training, in which blocks of 40 steps are watched and not, in turn; metrics are written every ten steps. ``--cpu-time`` is that of the thread that trains, which other
processes on its core hardly change; a wait for another rank by gloo takes none of it. What the guards themselves take:
``python -m tests.speed.guard``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory
from unittest.mock import patch

from runner.comm.timing import synchronize
from runner.guard.board import Board
from runner.parallel.task import Task
from runner.training import loop
from runner.training.loop import State, fit
from runner.training.options import TrainingOptions
from runner.training.preemption import Preemption, Wish
from runner.training.run import Run
from workloads import mnist

STEPS = 40  # of a block: a quarter of a second on a CPU, in which the ranks agree twice on whether to end
LIMIT = 1.01  # wanted


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--cpu-time", action="store_true")
    given, rest = parser.parse_known_args(argv)

    def measure(_: Run, task: Task, options: TrainingOptions) -> None:
        ends: list[float] = []
        stack = ExitStack()

        def after(state: State) -> None:
            if state.position.step % STEPS:
                return
            synchronize(run.device)
            ends.append(time.thread_time() if given.cpu_time else time.perf_counter())
            stack.close()
            if is_unwatched(len(ends)):
                stack.enter_context(patch.object(Board, "step", lambda *_: None))
                stack.enter_context(patch.object(Preemption, "wish", lambda *_, **__: Wish()))
                stack.enter_context(patch.object(loop._Meter, "add", forget))

        with contextlib.redirect_stdout(io.StringIO()), stack:
            fit(run, replace(task, test_data=None), options, on_step=[after])
        blocks = [(is_unwatched(number), end - begin) for number, (begin, end) in enumerate(pairwise(ends), 1)]
        report(run, blocks)

    steps = str(STEPS * (given.blocks + 1))
    options = [
        "--data",
        "digits",
        "--batch-size",
        "16",
        "--epochs",
        "1000000",
        "--max-steps",
        steps,
        "--save-every",
        "0",
        "--log-every",
        "10",
    ]
    with TemporaryDirectory() as folder:
        mnist.main(replace(run, train_by=measure), [*options, "--checkpoint-dir", folder, *rest])


def forget(meter: loop._Meter, *_: object) -> None:
    """Take no loss, and drop those of a watched block that are not written yet."""
    meter._losses, meter._places = [], []


def is_unwatched(number: int) -> bool:
    """Of blocks 0, 1, 2, 3 the middle two, and so on: so that neither kind is always first."""
    return number % 4 in (1, 2)


def report(run: Run, blocks: list[tuple[bool, float]]) -> None:
    times = {kind: [seconds / STEPS for is_one, seconds in blocks if is_one == kind] for kind in (False, True)}
    for name, kind in (("watched", False), ("unwatched", True)):
        middle, low, high = (1e3 * f(times[kind]) for f in (statistics.median, min, max))
        run.say(f"{name:10} {middle:.3f} ms per step ({low:.3f} to {high:.3f})")
    ratios = sorted(own / other for own, other in zip(times[False], times[True], strict=False))
    low, middle, high = statistics.quantiles(ratios, n=4)
    run.say(
        f"watched ÷ unwatched {middle:.3f} (half of {len(ratios)} pairs: {low:.3f} to {high:.3f}), wanted: at most {LIMIT}"
    )
