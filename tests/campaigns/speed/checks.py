"""A step of workloads.mnist with and without what watches it: progress for the guard, whether to end early, and its metrics.

    mpirun -np 2 python -m runner tests.campaigns.speed.checks [--rounds 15] [--max-steps 240] [--cpu-time]

Trainings that are watched and not, in turn. A watched one writes metrics as by default, the other none while it is measured. The
first forty steps are not counted: in them the ranks agree more often on whether to end. ``--cpu-time`` is that of the thread that
trains, which other processes on its core hardly change; a wait for another rank by gloo takes none of it. What the guards themselves
take: ``python -m tests.campaigns.speed.guard``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import time
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import TensorDataset

from runner.backends.timing import synchronize
from runner.guard.report.board import Board
from runner.parallel.task import Task
from runner.training.loop import fit
from runner.training.preemption import Preemption
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.workload import call
from tests.campaigns.speed.step import compare_loops
from workloads import mnist

UNCOUNTED = 40


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--max-steps", type=int, default=240)
    parser.add_argument("--cpu-time", action="store_true")
    given, rest = parser.parse_known_args(argv)

    def measure(_: Run, task: Task, options: Settings) -> None:
        small: Any = task.train_data
        copies = math.ceil(given.max_steps * options.batch_size * run.size / len(small))
        data = TensorDataset(
            *(torch.cat([tensor] * copies) for tensor in small.tensors)
        )  # one epoch, without an end inside
        alone = replace(task, train_data=data, test_data=None)

        def watched(every: int = options.log_every) -> float:
            ends: list[float] = []

            def after(_: object) -> None:
                synchronize(run.device)
                ends.append(time.thread_time() if given.cpu_time else time.perf_counter())

            with contextlib.redirect_stdout(io.StringIO()):
                fit(run, alone, replace(options, log_every=every), on_step=[after])
            counted = ends[UNCOUNTED - 1 :]
            return (counted[-1] - counted[0]) / (len(counted) - 1)

        def unwatched() -> float:
            with (
                patch.object(Board, "step", lambda *_: None),
                patch.object(Preemption, "agree", lambda *_, **__: False),
            ):
                return watched(every=given.max_steps)

        compare_loops(run, {"watched": watched, "unwatched": unwatched}, given.rounds, 1.01)

    options = ["--data", "digits", "--batch-size", "16", "--epochs", "1", "--max-steps", str(given.max_steps)]
    with TemporaryDirectory() as folder:
        call(
            mnist.main,
            replace(run, train_by=measure),
            [*options, "--save-every", "end", "--checkpoint-dir", folder, *rest],
        )
