"""Batches as trees: tensors in dicts, lists, tuples, named tuples, dataclasses, and whatever has a ``to()`` of its own."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def map_tensors(
    function: Callable[[Any], Any],
    tree: Any,
    move: Callable[[Any], Any] = lambda one: one,
    is_leaf: Callable[[Any], bool] = lambda one: isinstance(one, Tensor),
) -> Any:
    """Return the same tree with each tensor replaced by the function's result; what holds no tensors stays as it is.

    A mapping that is no dict, and cannot be made of its items, becomes a dict.

    Args:
        move: gives what takes the place of an object that moves itself.
        is_leaf: whether the function takes this part of the tree: by default a tensor.
    """

    def mapped(part: Any) -> Any:
        return map_tensors(function, part, move, is_leaf)

    if is_leaf(tree):
        return function(tree)
    if moves_itself(tree):  # among them torch's PackedSequence, a tuple of which some tensors have to stay on the host
        return move(tree)
    if isinstance(tree, Mapping):
        items = {key: mapped(value) for key, value in tree.items()}
        try:
            return items if type(tree) is dict else type(tree)(items)  # type: ignore[call-arg]  # most are made of a dict
        except Exception:  # whatever a class of one's own makes of it
            return items
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(mapped, tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map(mapped, tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        own = {one.name: getattr(tree, one.name) for one in fields(tree) if one.init}
        return replace(tree, **{name: mapped(value) for name, value in own.items()})
    return tree


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors_in(value)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for one in fields(tree):
            yield from tensors_in(getattr(tree, one.name))


def to_device(tree: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Return a batch on a device. Real floating-point tensors get the dtype; others (tokens, masks, complex numbers) keep theirs.

    An object of a library's class that has ``to()`` moves itself, and keeps its dtypes.
    """

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=True)

    return map_tensors(moved, tree, lambda one: one.to(device))


def moves_itself(tree: Any) -> bool:
    """Return whether this is no tree of tensors, but an object that moves to a device by its own ``to()``."""
    is_tree = isinstance(tree, Tensor | Mapping) or is_dataclass(tree) or type(tree) in (list, tuple, type)
    return not is_tree and callable(getattr(tree, "to", None))


def length_of_batch(tree: Any) -> int | None:
    """How many samples a batch has, by the first dimension of its tensors; None if they do not agree in it, or there are none."""
    lengths = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors_in(tree)}
    return lengths.pop() if len(lengths) == 1 and min(lengths) >= 0 else None


def pieces(tree: Any, count: int) -> list[tuple[Any, int]]:
    """A batch in so many micro-batches, as equal as can be, each with its number of samples.

    Where there are fewer samples than micro-batches, some have none: they are given the first sample, and 0 as their number.

    Raises:
        ValueError: the batch has tensors of several lengths, or none, and there is to be more than one micro-batch.
    """
    length = length_of_batch(tree)
    if count == 1:
        return [(tree, length or 1)]
    if not length:
        raise ValueError("its tensors have no common first dimension")

    def is_leaf(part: Any) -> bool:
        """Whether it is a tensor, or a list of texts or numbers, one per sample."""
        is_list = isinstance(part, list) and len(part) == length and not any(True for _ in tensors_in(part))
        return is_list or isinstance(part, Tensor)

    ends = [-(-length * number // count) for number in range(count + 1)]
    parts = []
    for start, end in itertools.pairwise(ends):
        first, last = (start, end) if end > start else (0, 1)
        cut = operator.itemgetter(slice(first, last))
        parts.append((map_tensors(cut, tree, is_leaf=is_leaf), end - start))
    return parts
