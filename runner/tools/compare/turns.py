"""The measurement: the engines train in turn, and the results of each are recorded."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from runner.comm.timing import largest, seconds_per_call, synchronize
from runner.launch.processes import on_terminal
from runner.parallel.task import Task, to_device
from runner.tools.compare.engines import Engine, build
from runner.tools.table import show_progress
from runner.training.batches import ShardSampler, train_loader
from runner.training.options import TrainingOptions
from runner.training.run import Run

Name = tuple[str, str]  # kind, backend

_WARM_UP = 3  # steps of an engine that are not timed
_EXCHANGES = 5  # of which the median is taken, in each round


class Turns:
    """Trains by each engine in turn, and holds the results, which are the same on all ranks.

    Attributes:
        samples: per step, of all ranks.
        exchange: seconds to exchange the gradients with nothing else running; 0 if nothing is exchanged.
        memory: rise of the peak in bytes, of the largest rank.
        losses: of the last step, mean over ranks.
        agree: whether all ranks have the same weights.
        distance: ‖w - w₁‖ ÷ ‖w₁‖, from the first engine's weights.
    """

    def __init__(
        self, engines: list[Name], run: Run, task: Task, options: TrainingOptions, *, steps: int, rounds: int
    ) -> None:
        self.engines, self.samples = engines, options.batch_size * run.data_size
        self.exchange: dict[Name, float] = {}
        self.memory: dict[Name, int] = {}
        self.losses: dict[Name, float] = {}
        self.agree: dict[Name, bool] = {}
        self.distance: dict[Name, float] = {}
        self._run, self._task, self._options = run, task, options
        self._rounds = min(rounds, steps)
        self._each = -(-steps // self._rounds)
        self._random = dict.fromkeys(engines, torch.get_rng_state())  # so that dropout is the same for each engine
        self._seconds: dict[Name, list[list[float]]] = {name: [] for name in engines}
        self._exchanges: dict[Name, list[float]] = {name: [] for name in engines}
        self._built: dict[Name, tuple[Engine, Iterator[tuple[Tensor, Tensor]]]] = {}

    def seconds(self, engine: Name) -> list[float]:
        """Seconds of each step, of the slowest rank."""
        return [seconds for turn in self._seconds[engine] for seconds in turn]

    def rounds_of(self, engine: Name) -> list[list[float]]:
        """As ``seconds``, but in a list per round."""
        return self._seconds[engine]

    def take(self) -> None:
        """Run all steps of all engines. Collective."""
        order = list(self.engines)
        warmed = build(
            "alone", "", self._run, self._task, self._options
        )  # so that no engine's time includes torch's first step
        warmed.step(*next(self._batches()))
        del warmed
        for number in range(self._rounds):
            for name in order:
                if self._run.is_main and on_terminal(in_place=True):
                    show_progress(f"round {number + 1} of {self._rounds}: {':'.join(filter(None, name))}")
                self._turn(name)
            order.append(order.pop(0))  # the next round begins with another engine
        if self._run.is_main:
            show_progress("")
        reference = self._weights(self.engines[0])
        for name in self.engines:
            weights = self._weights(name)
            extremes = torch.stack([weights, -weights])
            dist.all_reduce(extremes, dist.ReduceOp.MAX)
            self.agree[name] = bool((extremes[0] == -extremes[1]).all())
            self.distance[name] = float((weights - reference).norm() / reference.norm())
            self.exchange[name] = statistics.median(self._exchanges[name] or [0.0])

    def _turn(self, name: Name) -> None:
        device = self._run.device
        torch.set_rng_state(self._random[name])
        if name not in self._built:
            before = _reset_peak(device)
            engine = build(*name, self._run, self._task, self._options)
            batches = self._batches()
            self._built[name] = engine, batches
            for _ in range(_WARM_UP):
                engine.step(*next(batches))
            (rise,) = largest([float(_peak(device) - before)], device)
            self.memory[name] = int(rise)
        engine, batches = self._built[name]
        with engine.turn():
            own, loss = [], torch.zeros(())
            dist.barrier()
            for _ in range(self._each):
                start = time.perf_counter()
                loss = engine.step(*next(batches))
                synchronize(device)
                own.append(time.perf_counter() - start)
            if engine.exchange is not None:
                times = [seconds_per_call(engine.exchange, 1, device) for _ in range(_EXCHANGES)]
                self._exchanges[name].append(statistics.median(times))
        self._seconds[name].append(largest(own, device))
        self._random[name] = torch.get_rng_state()
        (total,) = self._run.sum(float(loss))
        self.losses[name] = total / self._run.size

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """An endless series of batches, the same for every engine."""
        run, data, options = self._run, self._task.train_data, self._options
        sampler = ShardSampler.over(data, run.data_rank, run.data_size, options.seed)
        loader = train_loader(data, sampler, options.batch_size, options.workers)
        dtype = getattr(torch, options.dtype)
        for sampler.epoch in itertools.count():
            for batch in loader:
                yield to_device(batch[0], batch[1], run.device, dtype)

    def _weights(self, name: Name) -> Tensor:
        state = self._built[name][0].model.parameters()
        return torch.cat([parameter.detach().double().reshape(-1) for parameter in state])


def _reset_peak(device: torch.device) -> int:
    """Reset the peak of memory use. Returns the bytes in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set
    return _from_status("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _from_status("VmHWM")


def _from_status(field: str) -> int:
    """A size in bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
