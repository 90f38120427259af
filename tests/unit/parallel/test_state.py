"""State by parameter name."""

from __future__ import annotations

import copy
import json
from collections import deque
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from runner.base.errors import UsageError
from runner.parallel.json_codec import decode, encode
from runner.parallel.state import StateDict, load_state, room_for, state_of
from tests.unit.parallel.test_trainer import task


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
        (torch.optim.SGD, {"lr": numpy.float32(0.1), "momentum": 0.9}),
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


@pytest.mark.parametrize(
    "value",
    [
        *(numpy.int64(3), numpy.float32(0.5), numpy.bool_(True), numpy.uint16(7), numpy.float16(2)),
        numpy.arange(6).reshape(2, 3)[:, ::-1],
        numpy.random.RandomState(0).get_state(),
        numpy.random.default_rng(0).bit_generator.state,
        {1: "a", (1, 2): {"3": torch.float16, 3: torch.device("cuda", 1)}},
        {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},  # no tensor takes another's name
        deque([1.0, numpy.float32(2)], maxlen=3),
        [{1, 2}, frozenset("a"), b"\x00\xff", 1j, float("inf"), None, (1, [2, (3,)]), {"__tuple__": 1}],
    ],
    ids=repr,
)
def test_values_of_any_kind_come_back_as_they_were(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    found = decode(json.loads(json.dumps(encode(value, "own", tensors))), tensors)
    assert repr(found) == repr(value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "cannot hold own, which is of type object"),
        (numpy.array([object()]), "cannot hold own, which is of type ndarray"),
        ({torch.ones(1): 1}, "cannot hold own, of which a key is a tensor"),
        (torch.zeros(2, dtype=torch.complex128), "cannot hold own, a Tensor of complex128"),
        (torch.eye(2).to_sparse(), "cannot hold own, a Tensor of float32, sparse_coo"),
    ],
)
def test_what_cannot_be_saved_is_refused(value: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        encode(value, "own", {})


class _Wrapping(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {"base": super().state_dict(), "slow": {}}


class _Stateless(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("use distributed_state_dict()")


@pytest.mark.parametrize(
    ("kind", "told"), [(_Wrapping, "has base, slow, and not state"), (_Stateless, "fails, .*distributed_state_dict")]
)
def test_an_optimizer_with_a_state_of_its_own_form_is_refused(kind: type[torch.optim.Optimizer], told: str) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError, match=f"{kind.__name__}.state_dict.. {told}") as caught:
        state_of(model, kind(model.parameters(), lr=0.1))  # type: ignore[call-arg]
    assert caught.value.on_all_ranks


@pytest.mark.parametrize("is_factory", [False, True])
def test_a_compiled_model_has_its_own_names_and_is_compiled(is_factory: bool) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def make() -> nn.Module:
        inner: Any = torch.compile(nn.Linear(2, 2), backend=backend)
        return torch.compile(nn.Sequential(inner), backend=backend)  # type: ignore[return-value]

    model = task(make if is_factory else make()).build(torch.device("cpu"), torch.float32)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    model(torch.ones(1, 2))
    assert graphs
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(torch.ones(1, 2)).any()  # the copy's forward is its own
