"""Nested values with tensors in them, as JSON that refers to the tensors by name, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from runner.base.errors import UsageError

# A dict with one of these as its only key stands for what JSON does not have.
_TENSOR, _ARRAY, _PAIRS = "__tensor__", "__numpy__", "__pairs__"
# Each other kind with its parts, which are encoded, and what makes it of them again. A derived kind comes back as the one here.
_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "__tuple__": (tuple, list, tuple),
    "__set__": (set, list, set),
    "__frozenset__": (frozenset, list, frozenset),
    "__deque__": (deque, lambda one: [list(one), one.maxlen], lambda parts: deque(*parts)),
    "__bytes__": (bytes, bytes.hex, bytes.fromhex),
    "__complex__": (complex, lambda one: [one.real, one.imag], lambda parts: complex(*parts)),
    "__dtype__": (torch.dtype, lambda one: str(one).removeprefix("torch."), lambda name: getattr(torch, name)),
    "__device__": (torch.device, str, torch.device),
}
_DTYPES_NOT_SAVED = (torch.complex32, torch.complex128)
_MARKS = {_TENSOR, _ARRAY, _PAIRS, *_KINDS}


def encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value for JSON. Its tensors and NumPy arrays are added to ``tensors`` under names that begin with ``name``.

    Raises:
        UsageError: it holds something that a checkpoint cannot.
    """
    if isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        native = numpy.array(value, value.dtype.newbyteorder("="), order="C")
        return {_ARRAY: _added(torch.from_numpy(native), name, tensors)}
    if isinstance(value, Tensor):
        return {_TENSOR: _added(value.detach() if value.requires_grad else value, name, tensors)}
    if isinstance(value, dict):
        items = {key: encode(item, f"{name}.{key}", tensors) for key, item in value.items()}
        is_object = all(isinstance(key, str) for key in items) and not _MARKS & items.keys()
        return items if is_object else {_PAIRS: [[_encoded_key(key, name), item] for key, item in items.items()]}
    if isinstance(value, list):
        return [encode(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    for mark, (kind, parts, _) in _KINDS.items():
        if isinstance(value, kind):
            return {mark: encode(parts(value), name, tensors)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"a checkpoint cannot hold {name}, which is of type {type(value).__name__}",
        fix="make it of tensors, numbers, texts, lists and dicts",
    )


def _added(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> str:
    """Add a tensor that safetensors can hold under a name, or a longer one if that is taken, as by ``{"a.b": one, "a": {"b": another}}``."""
    is_wrapped = hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "placements")  # no DTensor
    if tensor.dtype in _DTYPES_NOT_SAVED or tensor.layout != torch.strided or tensor.is_quantized or is_wrapped:
        form = f"{type(tensor).__name__} of {tensor.dtype}, {tensor.layout}".replace("torch.", "")
        raise UsageError(f"a checkpoint cannot hold {name}, a {form}", fix="make it of plain, dense tensors")
    while name in tensors:
        name += "_"
    tensors[name] = tensor
    return name


def _encoded_key(key: Any, name: str) -> Any:
    none: dict[str, Tensor] = {}
    encoded = encode(key.item() if isinstance(key, numpy.generic) else key, name, none)
    if none:
        raise UsageError(f"a checkpoint cannot hold {name}, of which a key is a tensor", fix="take names for its keys")
    return encoded


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that was encoded, with these tensors."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value)) if len(value) == 1 else None
    if mark == _TENSOR:
        return tensors[value[mark]]
    if mark == _ARRAY:
        array = tensors[value[mark]].cpu().numpy()
        return array if array.ndim else array[()]
    if mark == _PAIRS:
        return {decode(key, tensors): decode(item, tensors) for key, item in value[mark]}
    if mark in _KINDS:
        return _KINDS[mark][2](decode(value[mark], tensors))
    return {key: decode(item, tensors) for key, item in value.items()}


def renamed(value: Any, new: Callable[[str], str]) -> Any:
    """An encoded value that refers to its tensors by new names."""
    if isinstance(value, list):
        return [renamed(item, new) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() in ({_TENSOR}, {_ARRAY}):
        return {mark: new(name) for mark, name in value.items()}
    return {key: renamed(item, new) for key, item in value.items()}
