"""Nested values with tensors in them, as JSON that refers to the tensors by name, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from runner.base.errors import UsageError

# A dict with one of these as its only key stands for what JSON does not have.
_TENSOR, _TUPLE, _PAIRS = "__tensor__", "__tuple__", "__pairs__"
_MARKS = {_TENSOR, _TUPLE, _PAIRS}


def encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value for JSON. Its tensors are added to ``tensors`` under names that begin with ``name``.

    Raises:
        UsageError: it holds something that is neither a tensor nor a number, a text, a list, a tuple or a dict.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach() if value.requires_grad else value
        return {_TENSOR: name}
    if isinstance(value, dict):
        items = {key: encode(item, f"{name}.{key}", tensors) for key, item in value.items()}
        is_object = all(isinstance(key, str) for key in items) and not _MARKS & items.keys()
        return items if is_object else {_PAIRS: [[encode(key, name, {}), item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        encoded = [encode(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {_TUPLE: encoded} if isinstance(value, tuple) else encoded
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"a checkpoint cannot hold {name}, which is of type {type(value).__name__}",
        fix="make it of tensors, numbers, texts, lists and dicts",
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that was encoded, with these tensors."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if value.keys() == {_TUPLE}:
        return tuple(decode(item, tensors) for item in value[_TUPLE])
    if value.keys() == {_PAIRS}:
        return {decode(key, tensors): decode(item, tensors) for key, item in value[_PAIRS]}
    return {key: decode(item, tensors) for key, item in value.items()}


def renamed(value: Any, new: Callable[[str], str]) -> Any:
    """An encoded value that refers to its tensors by new names."""
    if isinstance(value, list):
        return [renamed(item, new) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return {_TENSOR: new(value[_TENSOR])}
    return {key: renamed(item, new) for key, item in value.items()}
