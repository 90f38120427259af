"""A workload that trains all cases by several strategies in one process group, each beside one process, and says what came of each.

mpirun -np 2 python -m runner tests.campaigns.sweep.train [--only NAME…] [--strategies fsdp zero1]
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runner.base.errors import RunnerError
from runner.parallel import make_trainer
from runner.parallel.settings import ParallelSettings
from runner.parallel.state import full_tensor
from runner.parallel.task import Task
from runner.training.run import Run
from tests.campaigns.sweep.cases import CASES, SAMPLES, Case, task_of
from tests.programs.layouts.deviations import largest

STEPS, TRAINS, REFUSED, FAILS = 3, "trains", "refused", "FAILS"


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--strategies", nargs="*", default=["ddp", "fsdp", "zero1"])
    given = parser.parse_args(argv)
    for name in given.only:
        for strategy in given.strategies:
            what, detail = outcome(run, CASES[name], strategy)
            run.print("case " + json.dumps({"case": name, "where": strategy, "what": what, "detail": detail}))


def outcome(run: Run, case: Case, strategy: str) -> tuple[str, str]:
    """What comes of a case on all ranks: trained as one process trains it, refused in one line, or neither. Collective."""
    own: tuple[str, str | float]
    try:
        own = TRAINS, _deviation(run, case, ParallelSettings(strategy=strategy))
    except RunnerError as error:
        own = REFUSED, str(error)
    except Exception as error:
        own = FAILS, described(error)
    everyone: list[Any] = [None] * run.size
    torch.distributed.all_gather_object(
        everyone, own
    )  # also from a rank that failed: the next case's would meet the others
    return judged(everyone, 0.05 if case.optimizer == "Muon" else 1e-6)  # Muon computes in bfloat16


def judged(everyone: Sequence[tuple[str, Any]], limit: float) -> tuple[str, str]:
    """What comes of a case by what each rank has found: its deviation, or why there is none."""
    kinds = {what for what, _ in everyone}
    if kinds == {TRAINS}:
        deviation = largest(found for _, found in everyone)
        return (TRAINS if deviation < limit else FAILS), f"{deviation:.0e} off"
    worst = FAILS if FAILS in kinds else REFUSED
    rank, why = next((rank, why) for rank, (what, why) in enumerate(everyone) if what == worst)
    return (worst, why) if len(kinds) == 1 else (FAILS, f"on rank {rank}, not on all: {worst}: {why}")


def described(error: Exception) -> str:
    """In one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _deviation(run: Run, case: Case, options: ParallelSettings) -> float:
    """The largest relative difference of this rank's weights from those that one process trains."""
    task = task_of(case)
    alone = replace(task_of(case), train_data=task.train_data)
    trainer = make_trainer(task, run.setting("float64", options))
    inputs, targets = (tensor.double() if tensor.is_floating_point() else tensor for tensor in task.train_data[:])  # type: ignore[index]  # a TensorDataset
    own = slice(run.rank, SAMPLES, run.size)
    for _ in range(STEPS):
        trainer.step((inputs[own], targets[own]))
    expected = _trained_alone(alone)
    state = {name: full_tensor(one.detach()) for name, one in trainer.model.named_parameters()}
    trainer.load(copy.deepcopy(trainer.state()))
    return largest(_difference(state[name], one) for name, one in expected.items() if one.numel())


def _trained_alone(task: Task) -> dict[str, Tensor]:
    model = task.build(torch.device("cpu"), torch.float64)
    optimizer = task.optimizer(model.parameters())
    inputs, targets = (tensor.double() if tensor.is_floating_point() else tensor for tensor in task.train_data[:])  # type: ignore[index]  # a TensorDataset
    for _ in range(STEPS):
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return dict(model.named_parameters())


def _difference(one: Tensor, other: nn.Parameter) -> float:
    return float((one - other.detach()).abs().max() / max(other.detach().abs().max(), 1e-12))
