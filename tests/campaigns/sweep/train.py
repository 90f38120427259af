"""A workload that trains all cases by several strategies in one process group, each beside one process, and says what came of each.

mpirun -np 2 python -m runner tests.campaigns.sweep.train [--only NAME…] [--strategies fsdp zero1]
"""

from __future__ import annotations

import argparse
import copy
import json
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
    """What comes of a case: trained as one process trains it, refused in one line, or neither."""
    try:
        deviation = _deviation(run, case, ParallelSettings(strategy=strategy))
    except RunnerError as error:
        return REFUSED, str(error)
    except Exception as error:
        return FAILS, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    limit = 0.05 if case.optimizer == "Muon" else 1e-6  # Muon computes in bfloat16
    return (TRAINS if deviation < limit else FAILS), f"{deviation:.0e} off"


def _deviation(run: Run, case: Case, options: ParallelSettings) -> float:
    """The largest relative difference of the weights from those that one process trains."""
    task = task_of(case)
    alone = replace(task_of(case), train_data=task.train_data)
    trainer = make_trainer(task, run.setting("float64", options))
    inputs, targets = (tensor.double() if tensor.is_floating_point() else tensor for tensor in task.train_data[:])  # type: ignore[index]  # a TensorDataset
    own = slice(run.rank, SAMPLES, run.size)
    for _ in range(STEPS):
        trainer.step(inputs[own], targets[own])
    expected = _trained_alone(alone)
    state = {name: full_tensor(one.detach()) for name, one in trainer.model.named_parameters()}
    differences = [_difference(state[name], one) for name, one in expected.items() if one.numel()]
    trainer.load(copy.deepcopy(trainer.state()))
    everyone: list[Any] = [None] * run.size
    torch.distributed.all_gather_object(everyone, max(differences))
    return max(everyone)


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
