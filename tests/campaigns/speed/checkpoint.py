"""How long a checkpoint of workloads.llama stops the training: written in the background ÷ written at once, in turn.

    mpirun -np 2 python -m runner tests.campaigns.speed.checkpoint --size debug [--strategy fsdp] [--rounds 15]

``stops`` is the time of the call that saves. ``costs`` is what the steps take longer in which it is written, and the wait for its
end. The options are those of workloads.llama.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runner.parallel import Setting, make_trainer
from runner.parallel.task import Task
from runner.parallel.trees import to_device
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.workload import call
from tests.campaigns.speed.spread import ratios, spread
from workloads import llama

STEPS = 8  # after each checkpoint


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=15)
    given, rest = parser.parse_known_args(argv)

    def measure(run: Run, task: Task, options: Settings) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _measure(run, task, options, Path(run.on_main(lambda: folder)), given.rounds)
            dist.barrier()

    call(llama.main, replace(run, train_by=measure), rest)


def _measure(run: Run, task: Task, options: Settings, folder: Path, rounds: int) -> None:
    setting = Setting(device=run.device, dtype=torch.float32, mesh=run.mesh, options=options)
    trainer = make_trainer(task, setting)
    batch = [task.train_data[index] for index in range(options.batch_size)]
    inputs, targets = to_device(
        (torch.stack([one[0] for one in batch]), torch.stack([one[1] for one in batch])), run.device, torch.float32
    )
    checkpoints: dict[str, Any] = {"none": None}
    for name, save_async in (("at once", False), ("in the background", True)):
        own = folder / name  # in one folder one of them would remove the other's older checkpoints, too
        run.on_main(own.mkdir)
        here = replace(options, checkpoint_dir=own, save_async=save_async)
        checkpoints[name] = Checkpoints(run, trainer, here, {}, None, lambda: None, lambda: None)
    stops: dict[str, list[float]] = {name: [] for name in checkpoints}
    takes: dict[str, list[float]] = {name: [] for name in checkpoints}
    for turn in range(rounds + 1):
        for name, writer in checkpoints.items():
            dist.barrier()
            start = time.perf_counter()
            if writer is not None:
                writer.save(Position(0, turn, 0))
            stopped = time.perf_counter() - start
            for _ in range(STEPS):
                trainer.step((inputs, targets))
            if writer is not None:
                writer.finish()
            if turn:  # the first round warms up
                stops[name].append(stopped)
                takes[name].append(time.perf_counter() - start)
    _report(run, stops, takes)


def _report(run: Run, stops: dict[str, list[float]], takes: dict[str, list[float]]) -> None:
    bare = statistics.median(takes["none"])
    run.print(f"{STEPS} steps take {1e3 * bare:.1f} ms")
    for name in ("at once", "in the background"):
        cost = statistics.median(takes[name]) - bare
        run.print(f"{name:18} stops {1e3 * statistics.median(stops[name]):7.2f} ms  costs {1e3 * cost:7.2f} ms")
    run.print(f"stops, in the background ÷ at once: {spread(ratios(stops['in the background'], stops['at once']))}")
