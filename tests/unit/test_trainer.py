"""Tasks: models and what makes them, and a model that is filled after it was made without memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.parallel.options import ParallelOptions
from runner.parallel.task import Plan, Task, fill
from runner.parallel.trainer import Trainer

CPU = torch.device("cpu")


def task(model: object, plan: Plan | None = None) -> Task:
    return Task(
        model=model,  # type: ignore[arg-type]
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.zeros(1)),
        plan=plan or Plan(),
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_a_factory_makes_the_same_model_as_its_caller() -> None:
    torch.manual_seed(0)
    made = task(net).build(CPU, torch.float64)
    torch.manual_seed(0)
    given = task(net()).build(CPU, torch.float64)
    assert all(torch.equal(one, two) for one, two in zip(made.parameters(), given.parameters(), strict=True))
    assert made[0].weight.dtype == torch.float64  # type: ignore[index, union-attr]


def test_a_model_without_memory_is_filled_as_it_would_have_been_made() -> None:
    empty = task(net).build(torch.device("meta"), torch.float32)
    assert all(parameter.is_meta for parameter in empty.parameters())
    torch.manual_seed(0)
    fill(empty, CPU)
    torch.manual_seed(0)
    made = net()
    for (name, one), two in zip(empty.state_dict().items(), made.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_a_module_that_cannot_be_filled_is_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(ValueError, match=r"1 \(Scaled\) has no reset_parameters"):
        fill(task(lambda: nn.Sequential(nn.Linear(1, 1), Scaled())).build(torch.device("meta"), torch.float32), CPU)


def test_a_plan_names_modules_by_patterns() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(1, 1) for _ in range(3)), "head": nn.Linear(1, 1)})
    assert Plan(shard=("layers.*", "head")).units(model) == [*model["layers"], model["head"]]  # type: ignore[misc]
    assert Plan().units(model) == []


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_a_step_is_the_same_in_any_number_of_micro_batches_and_clips_the_whole_gradient(micro_batches: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options = ParallelOptions(micro_batches=micro_batches, clip_norm=0.25)
    trainer = Trainer(task(model), model, torch.optim.SGD(model.parameters(), lr=1.0), options)
    inputs, targets = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    expected = nn.functional.mse_loss(model(inputs), targets)
    assert trainer.step(inputs, targets).item() == pytest.approx(expected.item(), rel=1e-12)
    moved = torch.cat([(a - b).reshape(-1) for a, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)
