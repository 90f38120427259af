"""The measurement: the engines train in turn, and the results of each are recorded."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.gpu import is_gpu
from runner.backends.timing import largest, synchronize
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.precision import of_inputs
from runner.parallel.state import full_tensor
from runner.parallel.support import described
from runner.parallel.task import Task
from runner.parallel.trees import to_device
from runner.tools.compare.choices import ALONE, Choice
from runner.tools.compare.engines import Engine, build
from runner.tools.tables.table import show_progress
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.random_numbers import random_states, set_random_states
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.training.settings import StepSettings
from runner.versions.torch_private import REDISTRIBUTION

_WARM_UP = 3  # steps of an engine that are not timed
_PATIENCE = timedelta(seconds=60)  # until the other ranks come to report what went wrong


@dataclass(kw_only=True)
class Entrant:
    """An engine, what it trains, and its results, which are the same on all ranks.

    Attributes:
        seconds: time of each step on the slowest rank, a list per round.
        memory: rise of the peak in bytes on the largest rank.
        loss: loss of the last step, mean over ranks.
        problem: why it cannot be trained here; "" if it can.
        agree: whether all ranks have the same weights.
        distance: ‖w - w₁‖ ÷ ‖w₁‖, from the first engine's weights.
    """

    choice: Choice
    task: Task
    options: StepSettings
    seconds: list[list[float]] = field(default_factory=list)
    memory: int = 0
    loss: float = 0.0
    problem: str = ""
    agree: bool = True
    distance: float = 0.0


class Turns:
    """Trains by each engine in turn.

    Attributes:
        samples: samples of all ranks in the first step, the same for each engine.
    """

    def __init__(self, run: Run, entrants: Sequence[Entrant], *, steps: int, rounds: int) -> None:
        """``entrants``: the first is what the others are compared with, the last is ``alone``."""
        self.entrants = list(entrants)
        alone = self.entrants[-1]
        assert alone.choice.kind == ALONE
        self.samples = 0
        self._run = run
        self._rounds = min(rounds, steps)
        self._each = -(-steps // self._rounds)
        names = [entrant.choice.name for entrant in entrants]
        self._random = dict.fromkeys(names, random_states(run.device))  # so that dropout is the same for each engine
        self._built: dict[str, tuple[Engine, Iterator[Any]]] = {}

    def take(self) -> None:
        """Run all steps of all engines. Those that cannot be built, or cannot do a step, get a problem. Collective.

        Raises:
            UsageError: no engine can be trained.
        """
        alone = self.entrants[-1]
        # So that no engine's time includes torch's first step; and what no engine can train is reported as such.
        problem = self._tried(functools.partial(self._warm, alone))
        if problem is None:
            # All first, so that what each engine's model takes is there before the others train.
            for entrant in self.entrants:
                if not entrant.problem:
                    entrant.problem = str(self._tried(functools.partial(self._build, entrant)) or "")
                if not entrant.problem:  # not before it is known that all ranks come here
                    entrant.memory = int(*largest([float(entrant.memory)], self._run.device))
            if len(self._trained()) < 2 or alone.problem:
                odd = next(entrant for entrant in self.entrants if entrant.problem)
                problem = f"--engines {odd.choice.name}: {odd.problem}"
        if problem is not None:
            with raised_on_all_ranks():
                raise UsageError(problem)
        order = self._trained()
        for number in range(self._rounds):
            for entrant in order:
                if self._run.is_main:
                    show_progress(f"round {number + 1} of {self._rounds}: {entrant.choice.name}")
                self._turn(entrant)
            order.append(order.pop(0))  # the next round begins with another engine
        if self._run.is_main:
            show_progress("")
        self._compare_weights()

    def _trained(self) -> list[Entrant]:
        """Return the engines that can be trained."""
        return [entrant for entrant in self.entrants if not entrant.problem]

    def _warm(self, alone: Entrant) -> None:
        engine = build(alone.choice, self._run, alone.task, alone.options)
        batches = self._batches(alone, of_inputs(engine.model))
        self.samples = next(batches)
        engine.step(next(batches))

    def _tried(self, work: Callable[[], None]) -> str | None:
        """Return in one line what goes wrong on any rank; None if nothing does. Collective.

        Raises:
            Exception: this rank's, if the others do not come to report theirs: they wait for this rank.
        """
        raised: Exception | None = None
        try:
            work()
        except Exception as error:
            raised = error
        problem = raised and (str(raised) if isinstance(raised, RunnerError) else described(raised))
        flag = torch.tensor([problem is not None], dtype=torch.int32, device=self._run.device)
        met = dist.all_reduce(flag, async_op=True)
        assert met is not None
        if raised is None:
            met.wait()
        else:
            try:
                met.wait(_PATIENCE)
            except RuntimeError:
                raise raised from None
        if not int(flag):
            return None
        everyone: list[Any] = [None] * self._run.size
        dist.all_gather_object(everyone, problem)
        return "; ".join(dict.fromkeys(text for text in everyone if text))

    def _build(self, entrant: Entrant) -> None:
        """Make an engine, and do its first steps."""
        device, name = self._run.device, entrant.choice.name
        set_random_states(self._random[name], device)
        before = _reset_peak(device)
        engine = build(entrant.choice, self._run, entrant.task, entrant.options)
        batches = self._batches(entrant, of_inputs(engine.model))
        if (samples := next(batches)) != self.samples:
            raise UsageError(
                f"n/a: its steps have {samples} samples, and those of data parallelism {self.samples}",
                fix="take the batch from the settings, and give the task the Dataset in the place of a DataLoader",
            )
        self._built[name] = engine, batches
        for _ in range(_WARM_UP):
            engine.step(next(batches))
        peak = torch.accelerator.max_memory_allocated(device) if is_gpu(device) else _from_status("VmHWM")
        entrant.memory = peak - before
        self._random[name] = random_states(device)

    def _turn(self, entrant: Entrant) -> None:
        device, name = self._run.device, entrant.choice.name
        set_random_states(self._random[name], device)
        engine, batches = self._built[name]
        with engine.turn():
            own, loss = [], torch.zeros(())
            dist.barrier()
            for _ in range(self._each):
                start = time.perf_counter()
                loss = engine.step(next(batches))
                synchronize(device)
                own.append(time.perf_counter() - start)
        entrant.seconds.append(largest(own, device))
        self._random[name] = random_states(device)
        (total,) = self._run.sum(float(loss))
        entrant.loss = total / self._run.size

    def _batches(self, entrant: Entrant, dtype: torch.dtype | None) -> Iterator[Any]:
        """Yield the number of samples of all ranks in the first step, then an engine's batches without an end."""
        source = source_of(entrant.task)
        options = with_batch_of(source, entrant.options)
        feed = feed_of(self._run, source, options, entrant.choice.layout)
        batches = itertools.chain.from_iterable(feed.batches(epoch, 0) for epoch in itertools.count())
        first = next(batches)
        yield first.all_samples
        for batch in itertools.chain([first], batches):
            yield to_device(batch.value, self._run.device, dtype)

    def _compare_weights(self) -> None:
        """Find whether ranks agree, and how far each engine's weights are from the first one's."""
        # Nothing trains after this: torch's advice on how to gather a tensor with two kinds of shards helps nobody.
        logging.getLogger(REDISTRIBUTION).setLevel(logging.ERROR)
        whole, _ = self._built[ALONE]
        places = {name: _as_row(weight).numel() for name, weight in whole.model.named_parameters()}
        reference = None
        for entrant in self._trained():
            engine, _ = self._built[entrant.choice.name]
            with engine.turn():
                engine.prepare_evaluation()
                weights, entrant.agree = _weights(engine, places)
            reference = weights if reference is None else reference
            entrant.distance = float((weights - reference).norm() / reference.norm())


@torch.no_grad()
def _weights(engine: Engine, places: dict[str, int]) -> tuple[Tensor, bool]:
    """Return the whole model's parameters in a row, and whether all ranks that have one have the same. Collective.

    Args:
        places: the number of elements of each parameter, by name.
    """
    own = {name: _as_row(full_tensor(weight.detach())) for name, weight in engine.model.named_parameters()}
    device = next(iter(own.values())).device
    elsewhere = -torch.inf  # another stage's
    row = torch.cat(
        [
            own[name] if name in own else torch.full([number], elsewhere, dtype=torch.float64, device=device)
            for name, number in places.items()
        ]
    )
    extremes = torch.stack([row, torch.where(row == elsewhere, elsewhere, -row)])
    dist.all_reduce(extremes, dist.ReduceOp.MAX)
    return torch.where(row == elsewhere, extremes[0], row), bool((extremes[0] == -extremes[1]).all())


def _as_row(tensor: Tensor) -> Tensor:
    """Return all numbers of a tensor in a row, both parts of complex ones."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).double()


def _reset_peak(device: torch.device) -> int:
    """Reset the peak of memory use. Returns the bytes in use now."""
    if is_gpu(device):
        torch.accelerator.reset_peak_memory_stats(device)
        return torch.accelerator.memory_allocated(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set
    return _from_status("VmRSS")


def _from_status(field: str) -> int:
    """Return a size in bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
