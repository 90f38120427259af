"""Whether a run fits the checkpoint that it continues from, and what has changed since."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from runner.base.errors import UsageError
from runner.base.plain_values import plain
from runner.parallel.state import shapes_of, state_of
from runner.training.checkpoint import resume
from runner.training.checkpoint.checkpoint_folder import Position, Saved

SETTINGS: dict[str, Any] = {"workload": "workloads.test", "ranks": 2, "seed": 0, "samples": 100, "optimizer": "SGD"}


def made(lr: float = 0.1, momentum: float = 0.9) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = nn.Linear(3, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 10 * lr}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
    plain = [{"lr": group["lr"], "momentum": momentum} for group in optimizer.param_groups]
    return model, optimizer, SETTINGS | {"groups": plain}


def saved_by(model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> Saved:
    return Saved(
        path=Path("runs/step-30"),
        workload="workloads.test",
        position=Position(2, 30, 5),
        settings=settings,
        groups=state_of(model, optimizer).groups,
    )


def checked(saved: Saved, settings: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    return resume.check_settings(saved, settings, optimizer, state_of(model, optimizer).groups)


def test_hyperparameters_that_have_changed_are_obeyed_and_schedules_stay() -> None:
    model, optimizer, settings = made(0.1, 0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    schedule.step()
    saved, half_way = saved_by(model, optimizer, settings), optimizer.state_dict()
    model, optimizer, settings = made(0.4, 0.8)
    changes = checked(saved, settings | {"ranks": 4}, model, optimizer)
    assert changes[0] == "ranks 2 → 4"
    assert set(changes[1:]) == {"lr 0.1 → 0.4", "lr 1 → 4", "momentum 0.9 → 0.8"}
    optimizer.load_state_dict(half_way)
    resume.obey_changes(saved, settings, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 2.0]
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.4, 4.0]
    assert {group["momentum"] for group in optimizer.param_groups} == {0.8}


def test_pairs_of_numbers_are_the_same_as_written_and_changed_as_pairs() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    settings = SETTINGS | {"optimizer": "Adam", "groups": [{"betas": (0.9, 0.999)}]}
    saved = saved_by(model, optimizer, SETTINGS | {"optimizer": "Adam", "groups": [{"betas": [0.9, 0.999]}]})
    assert checked(saved, settings, model, optimizer) == []
    settings = SETTINGS | {"optimizer": "Adam", "groups": [{"betas": (0.8, 0.999)}]}
    assert checked(saved, settings, model, optimizer) == ["betas [0.9, 0.999] → [0.8, 0.999]"]
    resume.obey_changes(saved, settings, optimizer)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.999)


def test_the_optimizer_has_to_be_the_same() -> None:
    model, optimizer, settings = made()
    saved = saved_by(model, optimizer, settings)
    with pytest.raises(UsageError, match="was made by SGD, and this is Adam"):
        checked(saved, settings, model, torch.optim.Adam(model.parameters()))
    with pytest.raises(UsageError, match=r"groups of \[1, 1\] parameters in the optimizer, and here they have \[2\]"):
        checked(saved, settings, model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_parameters_have_to_be_in_the_same_groups() -> None:
    model, optimizer, settings = made()
    saved = saved_by(model, optimizer, settings)
    groups = [{"params": [model.bias]}, {"params": [model.weight]}]
    with pytest.raises(UsageError, match="with weight in the optimizer's group 0, where it is not now"):
        checked(saved, settings, model, torch.optim.SGD(groups, lr=0.1))


@pytest.mark.parametrize("change", [{"seed": 1}, {"samples": 99}])
def test_the_rest_of_an_epoch_needs_the_same_order(change: dict[str, int]) -> None:
    model, optimizer, settings = made()
    saved = saved_by(model, optimizer, settings)
    with pytest.raises(
        UsageError, match="in mid-epoch with other data or another seed \\(then 100 samples, seed 0; now"
    ):
        checked(saved, settings | change, model, optimizer)
    between = replace(saved, position=Position(2, 30, 0))
    assert len(checked(between, settings | change, model, optimizer)) == 1


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (nn.Linear(3, 5), r"weight is \[2, 3\] there and \[5, 3\] here"),
        (nn.Linear(3, 2, bias=False), "it has bias, which the model has not"),
        (nn.Sequential(nn.Linear(3, 2)), r"it has no 0\.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_with_the_difference(model: nn.Module, difference: str) -> None:
    other, optimizer, settings = made()
    shapes = {name: (tuple(t.shape), t.dtype) for name, t in state_of(other, optimizer).tensors.items()}
    saved = saved_by(other, optimizer, settings)
    resume.check_model(saved, shapes, "workloads.other", shapes_of(other))
    with pytest.raises(UsageError, match=rf"another model \(workloads.test, this is workloads.other\): {difference}"):
        resume.check_model(saved, shapes, "workloads.other", shapes_of(model))


def test_settings_of_a_task_may_be_of_any_kind_and_only_changes_are_told() -> None:
    def own(rate: float) -> dict[str, Any]:
        kinds = {"pair": (1, (2, 3)), "path": Path("x"), "kind": torch.float16, "names": {"b", "a"}, "none": None}
        numbers = {"nan": math.nan, "array": numpy.arange(3), "small": numpy.float32(0.5), "object": object()}
        return plain({**kinds, **numbers, "nested": {(1, 2): {"rate": numpy.float64(rate)}}})  # type: ignore[no-any-return]

    model, optimizer, settings = made()
    saved = saved_by(model, optimizer, json.loads(json.dumps(settings | own(0.5))))
    assert checked(saved, settings | own(0.5), model, optimizer) == []
    assert checked(saved, settings | own(0.25), model, optimizer) == [
        "nested {'[1, 2]': {'rate': 0.5}} → {'[1, 2]': {'rate': 0.25}}"
    ]
