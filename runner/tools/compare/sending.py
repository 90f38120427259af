"""How many bytes a rank sends in a step, counted from the calls that the step makes.

Each call of a collective counts as a ring, in which no rank sends less (runner/tools/plan/traffic.py). So the number is that
of the algorithm, and not of a backend, which may send more or less, or copy within a host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group  # there is no public one (torch 2.14)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runner.tools.plan.traffic import all_gather, all_reduce, all_to_all, reduce_scatter
from runner.torch_api import not_compiled


def _along(number: float, ranks: int) -> float:
    """Of one rank's bytes, which each rank but the last of the ring passes on: the mean."""
    return (ranks - 1) / ranks * number


# What is in an operation's name, without underscores: (bytes that go in, ranks) → bytes that a rank sends.
_RULES: Mapping[str, Callable[[float, int], float]] = {
    "allreduce": all_reduce,
    "reducescatter": reduce_scatter,
    "allgather": all_gather,
    "alltoall": all_to_all,
    "broadcast": _along,
    "reduce": _along,
    "gather": _along,
    "scatter": _along,
    "send": lambda number, _: number,
}
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes that are sent in its context, by whatever part of torch.

    Attributes:
        sent: bytes, so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and run it."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # such as a DTensor: it calls again with what it holds
        given = dict(kwargs or {})
        namespace, _, name = func._schema.name.partition("::")
        rule = _rule(name) if namespace in _NAMESPACES else None
        if rule is not None:
            values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
            self.sent += rule(_bytes_in(values | given), _ranks_of(values | given))
        return func(*args, **given)


@contextmanager
def counted() -> Iterator[Counter]:
    """Count what is sent; compiled parts of a model run as they are written."""
    with not_compiled(), Counter() as counter:
        yield counter


def _rule(name: str) -> Callable[[float, int], float] | None:
    plain = name.replace("_", "")
    return next((rule for part, rule in _RULES.items() if part in plain), None)


def _bytes_in(values: Mapping[str, Any]) -> float:
    """Of the arguments that are inputs, or of the first if they are outputs, too."""
    names = [name for name in values if name.startswith("input")] or list(values)[:1]
    return float(sum(_nbytes(one) for one in tree_leaves([values[name] for name in names]) if isinstance(one, Tensor)))


def _nbytes(tensor: Tensor) -> int:
    return tensor._values().nbytes + tensor._indices().nbytes if tensor.is_sparse else tensor.nbytes


def _ranks_of(values: Mapping[str, Any]) -> int:
    group: Any = values.get("process_group", values.get("group_name"))
    if isinstance(group, str):
        group = _resolve_process_group(cast("Any", group))
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    assert isinstance(group, dist.ProcessGroup)
    return int(group.size())
