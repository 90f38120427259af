"""A training step of workloads.mnist against hand-written DDP loops with the same model, data and batch, in turn.

    mpirun -np 2 python -m runner tests.campaigns.speed.step [--rounds 15]

``tutorial`` takes its batches from a DataLoader with a DistributedSampler, as tutorials do; ``bare`` takes the
runner's own batches, so that the ratio to it is the cost of the loop alone.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

from runner.base.settings import option
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import ShuffledOrder
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings
from workloads.data.images import digits
from workloads.models.convnets import MnistNet


def hand_written(loader: Iterable[Any], options: Settings) -> float:
    """Seconds per step of a loop as the tutorials write it."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(MnistNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    loss_function = nn.CrossEntropyLoss()
    steps = 0
    start = time.perf_counter()
    for images, labels in loader:
        loss = loss_function(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return (time.perf_counter() - start) / steps


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    checkpoint_dir: Path = option(Path(gettempdir()))  # in which a folder is made
    epochs: int = 1
    lr: float = 2e-3
    batch_size: int = 16
    rounds: int = option(15, "measurements of each loop")


def main(run: Run, options: Options) -> None:
    with TemporaryDirectory() as folder:
        own = Path(folder)
        measure(run, replace(options, checkpoint_dir=own, metrics=own / "metrics.jsonl"), options.rounds)


def measure(run: Run, options: Settings, rounds: int) -> None:
    small, _ = digits()
    data = TensorDataset(*(torch.cat([tensor] * 4) for tensor in small.tensors))  # 5,748 images: a longer epoch

    def runner() -> float:
        task = Task(
            model=MnistNet(),
            loss=nn.CrossEntropyLoss(),
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=options.lr),
            train_data=data,
        )
        with contextlib.redirect_stdout(io.StringIO()):
            result = fit(run, task, options)
        return options.batch_size * run.size / result.samples_per_s

    def tutorial() -> float:
        sampler: DistributedSampler[Any] = DistributedSampler(data)
        return hand_written(DataLoader(data, options.batch_size, sampler=sampler, drop_last=True), options)

    def bare() -> float:
        order = ShuffledOrder(len(data), run.rank, run.size, options.batch_size, options.seed, drop_last=True)
        batches = IndexedFeed(data, order, Reading(), default_collate).batches(0, 0)
        return hand_written((batch.value for batch in batches), options)

    compare_loops(run, {"runner": runner, "tutorial": tutorial, "bare": bare}, rounds, 1.02)


def compare_loops(run: Run, loops: dict[str, Callable[[], float]], rounds: int, limit: float) -> None:
    """Run loops in turn, and print the times that they return, and the first one's ratios to the others.

    Args:
        limit: wanted of the first ratio.
    """
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    first, *others = names = list(loops)
    for number in range(rounds + 1):  # the first is not counted
        for name in names:
            torch.distributed.barrier()
            took = loops[name]()
            if number:
                seconds[name].append(took)
        names.append(names.pop(0))  # another goes first
    for name, times in seconds.items():
        run.print(
            f"{name:10} {1e3 * statistics.median(times):.3f} ms per step ({1e3 * min(times):.3f} to {1e3 * max(times):.3f})"
        )
    for name in others:
        ratios = [own / other for own, other in zip(seconds[first], seconds[name], strict=True)]
        wanted = f", wanted: at most {limit}" if name == others[0] else ""
        run.print(
            f"{first} / {name:10} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}){wanted}"
        )
