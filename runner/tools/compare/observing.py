"""How many bytes a rank sends in a step.

Collectives count as rings, in which no rank sends less (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009;
NCCL's "bus bandwidth", nccl-tests, doc/PERFORMANCE.md). The number is that of the algorithm. A backend may send more or less,
or copy within a host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import (
    COMMUNICATING,
    TorchDispatchMode,
    indices_of,
    process_group_named,
    schema_of,
    tree_leaves,
    values_of,
)


def all_reduce(number: float, ranks: int) -> float:
    """Return the bytes that each of ``ranks`` sends to sum ``number`` bytes."""
    return 2 * (ranks - 1) / ranks * number


def _share(number: float, ranks: int) -> float:
    """Return what a rank sends if it keeps 1/n of its bytes, or, as a mean, if all ranks but the last pass them on."""
    return (ranks - 1) / ranks * number


# A part of an operation's name, without underscores: (bytes that go in, ranks) → bytes that a rank sends.
_RULES: Mapping[str, Callable[[float, int], float]] = {
    "allreduce": all_reduce,
    "reducescatter": _share,
    "allgather": lambda number, ranks: (ranks - 1) * number,
    "alltoall": _share,
    "broadcast": _share,
    "reduce": _share,
    "gather": _share,
    "scatter": _share,
    "send": lambda number, _: number,
}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes that any part of torch sends in its context.

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
        self.sent += _bytes_sent(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def count_sent() -> Iterator[_Counter]:
    """Count what is sent; compiled parts of a model run as they are written."""
    with not_compiled(), _Counter() as counter:
        yield counter


def _bytes_sent(operation: Any, args: Sequence[Any], options: Mapping[str, Any]) -> float:
    """Return what a rank sends in an operation that a TorchDispatchMode sees; 0 if the operation is no collective."""
    schema = schema_of(operation)
    namespace, _, name = schema.name.partition("::")
    plain = name.replace("_", "")
    rule = next((rule for part, rule in _RULES.items() if part in plain), None)
    if rule is None or namespace not in COMMUNICATING:
        return 0.0
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    values = {**named, **options}
    return rule(_bytes_in(values), _ranks_of(values))


def _bytes_in(values: Mapping[str, Any]) -> float:
    """Return the bytes of the arguments that are inputs, or of the first if the inputs are outputs, too."""
    names = [name for name in values if name.startswith("input")] or list(values)[:1]
    return float(sum(_nbytes(one) for one in tree_leaves([values[name] for name in names]) if isinstance(one, Tensor)))


def _nbytes(tensor: Tensor) -> int:
    return values_of(tensor).nbytes + indices_of(tensor).nbytes if tensor.is_sparse else tensor.nbytes


def _ranks_of(values: Mapping[str, Any]) -> int:
    group: Any = values.get("process_group", values.get("group_name"))
    if isinstance(group, str):
        group = process_group_named(group)
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    assert isinstance(group, dist.ProcessGroup)
    return int(group.size())
