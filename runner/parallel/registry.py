"""The strategies of data parallelism by name. Other packages add some by an entry point ``runner.strategies``. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.base.extensions import extensions, load_function

HOOKS = ("none", "bf16", "fp16", "powersgd")


@dataclass(frozen=True, kw_only=True)
class StrategyTraits:
    """Facts about a strategy that are known before it is loaded.

    Attributes:
        function: what makes its trainer, as ``module:function``.
        shards: whether data-parallel ranks have a shard of each parameter; None if that is not known.
        shards_optimizer: whether they have a shard of the optimizer's state each, and the full model.
        is_local: whether they train by themselves, and average their weights every ``--sync-every`` steps.
        is_divisible: whether it goes with ``--tp`` and ``--pp``.
        hooks: how it can compress gradients.
        scales: whether it goes with fp16's gradient scaler.
    """

    function: str = ""
    shards: bool | None = False
    shards_optimizer: bool = False
    is_local: bool = False
    is_divisible: bool = False
    hooks: tuple[str, ...] = ()
    scales: bool = True


STRATEGIES = {
    "ddp": StrategyTraits(function="runner.parallel.strategies.ddp:ddp", is_divisible=True, hooks=HOOKS[1:]),
    "fsdp": StrategyTraits(function="runner.parallel.strategies.fsdp:fsdp", shards=True, is_divisible=True),
    "zero1": StrategyTraits(function="runner.parallel.strategies.zero1:zero1", shards_optimizer=True),
    "local-sgd": StrategyTraits(function="runner.parallel.strategies.local_sgd:local_sgd", is_local=True, scales=False),
    "horovod": StrategyTraits(function="runner.parallel.strategies.horovod:horovod", hooks=("fp16",), scales=False),
}
# One of another package refuses itself what it does not support.
_OF_OTHERS = StrategyTraits(shards=None, is_divisible=True, hooks=HOOKS[1:])


def traits_of(strategy: str) -> StrategyTraits:
    """Return the traits of a strategy, by its name."""
    return STRATEGIES.get(strategy, _OF_OTHERS)


def strategy_names() -> list[str]:
    """The names of all strategies, including those of other packages (entry point ``runner.strategies``)."""
    return [*STRATEGIES, *(point.name for point in extensions("runner.strategies"))]


def load_strategy(name: str) -> Callable[..., Any]:
    """The function of a strategy, from (task, setting) to its trainer, by its name."""
    if name in STRATEGIES:
        module, _, function = STRATEGIES[name].function.partition(":")
        strategy: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return strategy
    return load_function("runner.strategies", name, "strategy")
