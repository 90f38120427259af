"""The bytes of state that an optimizer keeps for a parameter, learnt from a step with tiny parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runner.base.errors import UsageError
from runner.parallel.task import OptimizerFactory

# A parameter's dimensions: all different, so that a state's dimension shows which one it follows.
_TINY = (2, 3, 5, 7, 11)


@dataclass(frozen=True)
class StateRule:
    """The state that an optimizer keeps.

    Attributes:
        kept: by the parameter's name: each state tensor's dtype size and dimensions; a negative one -n-1 is the parameter's n.
        groups: the names in the optimizer's groups, in its order.
    """

    kept: Mapping[str, Sequence[tuple[int, tuple[int, ...]]]]
    groups: Sequence[Sequence[str]]

    def bytes(self, name: str, shape: Sequence[int]) -> int:
        """Return the bytes of state for a parameter of this shape."""
        return sum(
            item * math.prod(shape[-size - 1] if size < 0 else size for size in sizes)
            for item, sizes in self.kept.get(name, ())
        )

    def shares(self, counts: Mapping[str, int], ranks: int) -> list[list[str]]:
        """Return the parameters that ZeroRedundancyOptimizer gives each rank: the largest first, each to the rank with least."""
        loads, shares = [0] * ranks, [list[str]() for _ in range(ranks)]
        for group in self.groups:
            for name in sorted((name for name in group if name in counts), key=lambda name: counts[name], reverse=True):
                rank = loads.index(min(loads))
                shares[rank].append(name)
                loads[rank] += counts[name]
        return shares


def state_rule(factory: OptimizerFactory, model: nn.Module) -> StateRule:
    """Let the optimizer do a step with parameters of as many dimensions as the model's, each 2 to 11 elements long.

    The rule is right for optimizers whose state has the parameter's shape (SGD, Adam, AdamW, RMSprop, …), some of its
    dimensions (Adafactor), or a fixed shape.

    Raises:
        UsageError: the optimizer cannot do a step by itself.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    tiny = {
        id(parameter): nn.Parameter(
            torch.zeros(_TINY[: parameter.dim()], dtype=parameter.dtype), parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    own = {id(made): names[key] for key, made in tiny.items()}
    try:
        optimizer = factory(list(tiny.values()))
        for parameter in tiny.values():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the workload's optimizer cannot do a step by itself ({type(error).__name__}: {error}); plan learns from one what "
            "it keeps"
        ) from None
    kept = {
        name: [_described(value, parameter.shape) for value in state.values() if isinstance(value, Tensor)]
        for parameter, state in optimizer.state.items()
        for name in own[id(parameter)]
    }
    groups = [[own[id(parameter)][0] for parameter in group["params"]] for group in optimizer.param_groups]
    return StateRule(kept, groups)


def _described(value: Tensor, shape: torch.Size) -> tuple[int, tuple[int, ...]]:
    sizes = list(shape)
    return value.element_size(), tuple(-sizes.index(size) - 1 if size in sizes else size for size in value.shape)
