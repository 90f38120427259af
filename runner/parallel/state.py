"""The state of a model and its optimizer, by parameter name: named tensors and plain values.

Names do not depend on ranks or strategy. torch's own functions are not used: ``get_state_dict`` makes a new optimizer step
once, in which Horovod's would communicate, and ``set_state_dict`` fails for an optimizer without state (torch 2.14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_TENSOR = "tensor"  # {"tensor": name} replaces a tensor among the plain values


@dataclass(frozen=True)
class State:
    """Tensors by name (``model.fc.weight``, ``optimizer.fc.weight.exp_avg``), and the optimizer's plain values.

    ``groups`` are the optimizer's parameter groups, with names as ``params``; ``values`` is the optimizer's state per
    parameter. JSON can hold both.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def state_of(model: nn.Module, optimizer: Optimizer) -> State:
    """The current state. Its tensors share memory with the model and the optimizer."""
    return state_by_name(model, optimizer, model.state_dict(), optimizer.state_dict())


def state_by_name(
    model: nn.Module, optimizer: Optimizer, model_state: Mapping[str, Tensor], optimizer_state: Mapping[str, Any]
) -> State:
    """The state from ``state_dict()`` of a model and an optimizer like these."""
    tensors = {f"model.{name}": value.detach() for name, value in model_state.items()}
    names = _names(model, optimizer)
    groups = [
        {name: _plain(value) for name, value in group.items() if name != "params" and _is_plain(value)}
        | {"params": [_name(number, names) for number in group["params"]]}
        for group in optimizer_state["param_groups"]
    ]
    values = {
        _name(number, names): _take_out(state, f"optimizer.{_name(number, names)}", tensors)
        for number, state in optimizer_state["state"].items()
    }
    return State(tensors, groups, values)


def load_state(model: nn.Module, optimizer: Optimizer, state: State) -> None:
    """Load a state. Parameters are found by name, so their order in the optimizer's groups does not matter.

    Raises:
        ValueError: the optimizer's parameters or groups differ.
    """
    model.load_state_dict(
        {name.removeprefix("model."): tensor for name, tensor in state.tensors.items() if name.startswith("model.")}
    )
    numbers = {name: number for number, name in enumerate(_names(model, optimizer))}
    own = optimizer.state_dict()["param_groups"]
    if [sorted(numbers.get(name, -1) for name in group["params"]) for group in state.groups] != [
        sorted(group["params"]) for group in own
    ]:
        raise ValueError("the groups of parameters differ")
    optimizer.load_state_dict(
        {
            "param_groups": [
                now | {name: _like(now.get(name), value) for name, value in saved.items() if name != "params"}
                for now, saved in zip(own, state.groups, strict=True)
            ],
            "state": {numbers[name]: _put_in(values, state.tensors) for name, values in state.values.items()},
        }
    )


def room_for(model: nn.Module, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
    """Tensors to read a state into: the model's own, and new ones for the optimizer, sharded like the parameters.

    Args:
        shapes: (shape, dtype) of all tensors of the state, by name.
    """
    own = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}
    parameters = {f"optimizer.{name}.": parameter for name, parameter in model.named_parameters()}
    room = {}
    for name, (shape, dtype) in shapes.items():
        like = next(
            (p for prefix, p in parameters.items() if name.startswith(prefix) and tuple(p.shape) == shape), None
        )
        if name in own:
            room[name] = own[name]
        elif like is not None:
            room[name] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        else:
            room[name] = torch.empty(shape, dtype=dtype)
    return room


def _names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The name of each of the optimizer's parameters, by the number that its ``state_dict()`` gives it."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [names.get(id(parameter), _unnamed(number)) for number, parameter in enumerate(parameters)]


def _name(number: int, names: Sequence[str]) -> str:
    return names[number] if number < len(names) else _unnamed(number)


def _unnamed(number: int) -> str:
    """The name of a parameter that is not the model's; a loss may have some."""
    return f"parameter-{number}"


def _take_out(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value with its tensors replaced by their names. The tensors are added to ``tensors``."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {str(key): _take_out(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    if not _is_plain(value):
        raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold")
    return value


def _put_in(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _put_in(item, tensors) for key, item in value.items()}
    return [_put_in(item, tensors) for item in value] if isinstance(value, list) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    is_scalar = isinstance(value, Tensor) and value.dim() == 0  # a learning rate may be one
    return is_scalar or value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _like(now: Any, saved: Any) -> Any:
    """A saved value, converted to the optimizer's current type: JSON has no tuples and no tensors."""
    convert: Callable[[Any], Any] = tuple if isinstance(now, tuple) else lambda value: value
    return torch.full_like(now, saved) if isinstance(now, Tensor) else convert(saved)
