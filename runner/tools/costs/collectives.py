"""How many bytes a rank sends in a collective: by formula, and of a call that torch makes.

Collectives count as rings, in which no rank sends less (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009;
NCCL's "bus bandwidth", nccl-tests, doc/PERFORMANCE.md). So the number is that of the algorithm, and not of a backend, which may
send more or less, or copy within a host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.versions.torch_private import (
    COMMUNICATING,
    indices_of,
    process_group_named,
    schema_of,
    tree_leaves,
    values_of,
)


def all_reduce(number: float, ranks: int) -> float:
    """Bytes that each of ``ranks`` sends to sum ``number`` bytes: 2(n-1)/n of them."""
    return 2 * (ranks - 1) / ranks * number


def reduce_scatter(number: float, ranks: int) -> float:
    """Each rank has ``number`` bytes and gets the sum of its share: (n-1)/n of them."""
    return (ranks - 1) / ranks * number


def all_gather(number: float, ranks: int) -> float:
    """Each rank has ``number`` bytes and gets those of all: n-1 times as many."""
    return (ranks - 1) * number


def all_to_all(number: float, ranks: int) -> float:
    """Each rank keeps 1/n of its ``number`` bytes."""
    return (ranks - 1) / ranks * number


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


def bytes_sent(operation: Any, args: Sequence[Any], options: Mapping[str, Any]) -> float:
    """What a rank sends in this operation, as a TorchDispatchMode sees it; 0 if it is no collective."""
    schema = schema_of(operation)
    namespace, _, name = schema.name.partition("::")
    rule = _rule(name) if namespace in COMMUNICATING else None
    if rule is None:
        return 0.0
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    values = {**named, **options}
    return rule(_bytes_in(values), _ranks_of(values))


def _rule(name: str) -> Callable[[float, int], float] | None:
    plain = name.replace("_", "")
    return next((rule for part, rule in _RULES.items() if part in plain), None)


def _bytes_in(values: Mapping[str, Any]) -> float:
    """Of the arguments that are inputs, or of the first if they are outputs, too."""
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
