"""The state of a model and its optimizer, by parameter name: named tensors and plain values.

Names do not depend on ranks or strategy. torch's own functions are not used: ``get_state_dict`` makes a new optimizer step
once, in which Horovod's would communicate, and ``set_state_dict`` fails for an optimizer without state (torch 2.14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.json_codec import decode, encode
from runner.versions.torch_api import ALL_HAVE_IT

NO_COPIES: Mapping[str, str] = {}
_OTHER = "of the optimizer: "  # begins the name of an entry that is not a parameter's


@dataclass(frozen=True)
class StateDict:
    """Tensors by name (``model.fc.weight``, ``optimizer.fc.weight.exp_avg``), and the plain values around them.

    ``groups`` are the optimizer's parameter groups, with names as ``params``. ``values`` are the optimizer's state per
    parameter, and the entries of the model's state that are not tensors. JSON can hold both.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)


@raised_on_all_ranks()
def state_of(model: nn.Module, optimizer: Optimizer, copies: Mapping[str, str] = NO_COPIES) -> StateDict:
    """The current state. Its tensors share memory with the model and the optimizer.

    Args:
        copies: the names of copies of parameters that another pipeline stage has, with the names there, by which the
            optimizer's state is kept.

    Raises:
        UsageError: it holds something that a checkpoint cannot.
    """
    model_state, optimizer_state = model.state_dict(), _state_of(optimizer)
    names = dict(enumerate(_names(model, optimizer, copies)))  # after state_dict(): fully_shard may replace parameters
    tensors: dict[str, Tensor] = {}
    extra = {}
    for name, value in model_state.items():
        encoded = encode(value, f"model.{name}", tensors)
        if not isinstance(value, Tensor):
            extra[name] = encoded
    values = {}
    for key, value in optimizer_state["state"].items():
        name = names.get(key, f"{_OTHER}{key}")
        values[name] = encode(value, f"optimizer.{name}", tensors)
    groups = [
        {name: scalar(value) for name, value in group.items() if name != "params" and is_plain(value)}
        | {"params": [names[number] for number in group["params"]]}
        for group in optimizer_state["param_groups"]
    ]
    return StateDict(tensors, groups, {"model": extra, "optimizer": values})


def load_state(model: nn.Module, optimizer: Optimizer, state: StateDict, copies: Mapping[str, str] = NO_COPIES) -> None:
    """Load a state, with ``copies`` as in ``state_of``. Parameters are found by name, so their order in the optimizer's groups does not matter.

    Raises:
        ValueError: the optimizer's parameters or groups differ; nothing is loaded then.
    """
    numbers: dict[str, Any] = {name: number for number, name in enumerate(_names(model, optimizer, copies))}
    own = _state_of(optimizer)["param_groups"]
    if [sorted(numbers.get(name, -1) for name in group["params"]) for group in state.groups] != [
        sorted(group["params"]) for group in own
    ]:
        raise ValueError("the groups of parameters differ")
    of_model = {name: tensor for name, tensor in state.tensors.items() if name.startswith("model.")}
    extra = decode(state.values.get("model", {}), state.tensors)
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in of_model.items()} | extra)
    optimizer.load_state_dict(
        {
            "param_groups": [
                now | {name: like(now.get(name), value) for name, value in saved.items() if name != "params"}
                for now, saved in zip(own, state.groups, strict=True)
            ],
            "state": {
                numbers.get(name, name.removeprefix(_OTHER)): decode(value, state.tensors)
                for name, value in state.values.get("optimizer", {}).items()
            },
        }
    )


def merged(state: StateDict, group: dist.ProcessGroup | None) -> StateDict:
    """A state with this rank's tensors, and the groups and values of all ranks of a group. Collective."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (state.groups, state.values), group=group)
    groups = [
        same[0] | {"params": list(dict.fromkeys(name for one in same for name in one["params"]))}
        for same in zip(*(groups for groups, _ in everyone), strict=True)
    ]
    values: dict[str, dict[str, Any]] = {key: {} for _, own in everyone for key in own}
    for _, own in everyone:
        for key, entries in own.items():
            values[key] |= entries
    return StateDict(state.tensors, groups, values)


def restricted(state: StateDict, names: Collection[str]) -> StateDict:
    """The part of a merged state that is about these parameters, or about none."""
    groups = [group | {"params": [name for name in group["params"] if name in names]} for group in state.groups]
    elsewhere = {name for group in state.groups for name in group["params"]}.difference(names)
    of_optimizer = {name: value for name, value in state.values.get("optimizer", {}).items() if name not in elsewhere}
    return StateDict(state.tensors, groups, state.values | {"optimizer": of_optimizer})


def room_for(
    model: nn.Module,
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    everywhere: Collection[str] = (),
    copies: Mapping[str, str] = NO_COPIES,
) -> dict[str, Tensor]:
    """Tensors to read a state into: the model's own, and new ones for the optimizer, sharded like the parameters.

    Args:
        shapes: (shape, dtype) of all tensors of the state, by name.
        everywhere: the names of the whole model's parameters. There is no room for what belongs to one that is elsewhere.
        copies: as in ``state_of``.
    """
    own = {f"model.{name}": value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    parameters = {copies.get(name, name): parameter for name, parameter in model.named_parameters()}
    room = {}
    for name, (shape, dtype) in shapes.items():
        like = parameters.get(_parameter_of(name, parameters) or "")
        if name in own:
            room[name] = own[name]
        elif name.startswith("model.") or (like is None and _parameter_of(name, everywhere)):
            continue
        elif like is not None and tuple(like.shape) == shape:
            room[name] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        else:
            room[name] = torch.empty(shape, dtype=dtype)
    return room


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one, or the tensor itself. Collective if it is sharded."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor: all of one that is not sharded."""
    if type(tensor) is Tensor:  # the next line takes as long as copying a small one
        return tensor
    shard: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The full shapes of a model's parameters and buffers, by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def copy_shard(full: Tensor, into: Tensor) -> None:
    """Copy a full tensor into another one, or this rank's shard of it if that is a DTensor."""
    if hasattr(into, "placements"):
        from torch.distributed.tensor import DTensor, distribute_tensor  # imports sympy, which takes a second

        assert isinstance(into, DTensor)
        full = distribute_tensor(full, into.device_mesh, into.placements, **ALL_HAVE_IT)
    into.copy_(full)


def _state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's ``state_dict()``, and refuse one of another form than torch's."""
    name, fix = type(optimizer).__name__, "take an optimizer whose state_dict() is torch's"
    try:
        found: dict[str, Any] = optimizer.state_dict()
    except Exception as error:
        raise UsageError(
            f"{name}.state_dict() fails, and is what checkpoints hold ({error!r:.200})", fix=fix
        ) from error
    if found.keys() != {"state", "param_groups"}:
        raise UsageError(
            f"{name}.state_dict() has {', '.join(map(str, found))}, and not state and param_groups alone", fix=fix
        )
    return found


def _parameter_of(name: str, parameters: Collection[str]) -> str | None:
    """The name of the parameter that a tensor of the optimizer's state is about (``optimizer.fc.weight.exp_avg``)."""
    prefix = name.removeprefix("optimizer.")
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        if prefix in parameters:
            return prefix
    return None


def _names(model: nn.Module, optimizer: Optimizer, copies: Mapping[str, str]) -> list[str]:
    """Return the name of each of the optimizer's parameters, by the number that its ``state_dict()`` gives it.

    A parameter that is not the model's has a name, too: a loss may have parameters.
    """
    names = {id(parameter): copies.get(name, name) for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [names.get(id(parameter), f"parameter-{number}") for number, parameter in enumerate(parameters)]


def is_plain(value: Any) -> bool:
    """Whether an entry of a parameter group is a number, a text or None, or a list of such values."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    is_scalar = isinstance(value, Tensor) and value.dim() == 0  # a learning rate may be one
    return is_scalar or isinstance(value, numpy.generic) or value is None or isinstance(value, bool | int | float | str)


def scalar(value: Any) -> Any:
    """Such an entry as JSON has it."""
    if isinstance(value, Tensor | numpy.generic):
        return value.item()
    return [scalar(item) for item in value] if isinstance(value, list | tuple) else value


def like(now: Any, saved: Any) -> Any:
    """A saved value in the type that the optimizer has for it now: JSON has no tuples, no tensors and none of NumPy's numbers."""
    if isinstance(now, Tensor):
        return torch.full_like(now, saved)
    if isinstance(now, numpy.generic):
        return type(now)(saved)
    return tuple(saved) if isinstance(now, tuple) else saved
