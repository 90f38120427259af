"""State by parameter name."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from runner.base.errors import UsageError
from runner.parallel.state import StateDict, load_state, room_for, state_of


def trained(optimizer: type[torch.optim.Optimizer], **options: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    made = optimizer(model.parameters(), **options)  # type: ignore[arg-type]

    def closure() -> torch.Tensor:
        made.zero_grad()
        loss: torch.Tensor = model(torch.arange(6.0).reshape(2, 3)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        made.step(closure)
    return model, made


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.1), "amsgrad": True}),
        (torch.optim.LBFGS, {"history_size": 3}),
    ],
)
def test_a_state_goes_through_json_and_new_tensors(
    optimizer: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    model, made = trained(optimizer, **options)
    state = state_of(model, made)
    other, its = trained(optimizer, **options)
    room = room_for(other, {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.tensors.items()})
    for name, tensor in room.items():
        tensor.copy_(state.tensors[name])
    load_state(other, its, StateDict(room, *json.loads(json.dumps([state.groups, state.values]))))
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    assert repr(made.state_dict()) == repr(its.state_dict())


def test_parameters_are_found_by_name_whatever_their_order() -> None:
    model, made = trained(torch.optim.Adam)
    state = state_of(model, made)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    its = torch.optim.Adam(list(reversed(list(other.parameters()))))
    load_state(other, its, state)
    for (name, parameter), own in zip(other.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(its.state[parameter]["exp_avg"], made.state[own]["exp_avg"]), name


def test_other_groups_are_refused() -> None:
    model, made = trained(torch.optim.Adam)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters())}]  # type: ignore[index]
    with pytest.raises(ValueError, match="the groups of parameters differ"):
        load_state(model, torch.optim.Adam(groups), state_of(model, made))


def test_parameters_that_are_not_the_models_are_saved_too() -> None:
    model, weight = nn.Linear(2, 1), nn.Parameter(torch.ones(()))
    made = torch.optim.SGD([*model.parameters(), weight], lr=0.1, momentum=0.9)
    (model(torch.ones(1, 2)).sum() * weight).backward()
    made.step()
    state = state_of(model, made)
    assert state.groups[0]["params"] == ["weight", "bias", "parameter-2"]
    load_state(model, made, state)


def test_state_that_belongs_to_no_parameter_or_is_no_tensor_goes_through() -> None:
    class Counted(nn.Linear):
        def get_extra_state(self) -> dict[str, object]:
            return {"calls": 3, "pairs": {0: (1, 2)}}

        def set_extra_state(self, state: object) -> None:
            self.loaded = state

    def made_once() -> tuple[Counted, torch.optim.Optimizer]:
        model = Counted(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer

    model, optimizer = made_once()
    optimizer.state["global_step"] = 7  # type: ignore[index]
    optimizer.state[model.weight] = {"tensor": torch.ones(1), "seen": {(1, 2): [None, 0.5]}}
    state = state_of(model, optimizer)
    other, its = made_once()
    load_state(other, its, StateDict(state.tensors, *json.loads(json.dumps([state.groups, state.values]))))
    assert other.loaded == {"calls": 3, "pairs": {0: (1, 2)}}
    assert repr(its.state_dict()) == repr(optimizer.state_dict())


def test_what_a_checkpoint_cannot_hold_is_refused_by_name() -> None:
    model, optimizer = trained(torch.optim.SGD, lr=0.1)
    optimizer.state[next(model.parameters())] = {"generator": torch.Generator()}
    with pytest.raises(
        UsageError, match=r"cannot hold optimizer\.0\.weight\.generator, which is of type Generator"
    ) as caught:
        state_of(model, optimizer)
    assert caught.value.on_all_ranks
