"""Cutting a model into pipeline stages, by the names of the modules where a stage may begin.

A stage is the model itself, with every module of another stage replaced by one that passes its input on. So its parameters
keep their names, and the model's ``forward`` stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.versions.torch_private import copy_of, replace_child


class PassThrough(nn.Module):
    """A stand-in for a module of another stage: it returns its first argument."""

    def forward(self, first: Any, *_: Any, **__: Any) -> Any:
        """Return ``first``."""
        return first


@raised_on_all_ranks()
def segments(model: nn.Module, cuts: Collection[str]) -> list[list[str]]:
    """The names of the model's modules, in the groups that cannot be cut any further, in the order of calls.

    What has no parameters is in one group with what comes before it, and at the beginning with what comes after: an optimizer
    takes no empty list.

    Raises:
        UsageError: parameters belong to a module that is cut, so to no stage.
    """
    found: list[list[str]] = [[]]
    for name in _pieces(model, "", cuts):
        if name in cuts and found[-1]:
            found.append([])
        found[-1].append(name)
    joined = found[:1]
    for group in found[1:]:
        if _has_parameters(model, group) and _has_parameters(model, joined[-1]):
            joined.append(group)
        else:
            joined[-1] += group
    return joined


def _has_parameters(model: nn.Module, names: Sequence[str]) -> bool:
    return any(True for name in names for _ in model.get_submodule(name).parameters())


@raised_on_all_ranks()
def balanced(costs: Sequence[float], count: int) -> list[range]:
    """The partition of a sequence into ``count`` runs whose largest cost is smallest.

    Raises:
        UsageError: there are fewer than ``count``.
    """
    if len(costs) < count:
        raise UsageError(
            f"the model can be cut into {len(costs)} pieces at most (each has parameters), and {count} stages are asked for",
            fix="take a smaller --pp or --stages-per-rank",
        )
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[k][n]: (largest cost, where the last run begins) of the first n in k runs
    best = [[(sums[n], 0) for n in range(len(costs) + 1)]]
    for k in range(2, count + 1):
        best.append(
            [
                min(
                    ((max(best[-1][cut][0], sums[n] - sums[cut]), cut) for cut in range(k - 1, n)),
                    default=(float("inf"), 0),
                )
                for n in range(len(costs) + 1)
            ]
        )
    ends = [len(costs)]
    for row in reversed(best):
        ends.append(row[ends[-1]][1])
    return [range(begin, end) for end, begin in itertools.pairwise(ends)][::-1]


def submodel(module: nn.Module, pieces: Collection[str], own: Collection[str], prefix: str = "") -> nn.Module:
    """Return a copy of a module with its own pieces, those of these names; other pieces pass their input on."""
    part = copy_of(module)
    for key, child in module.named_children():
        name = f"{prefix}{key}"
        if name not in own:
            replace_child(part, key, PassThrough() if name in pieces else submodel(child, pieces, own, f"{name}."))
    return part


def _pieces(module: nn.Module, name: str, cuts: Collection[str]) -> list[str]:
    """The largest modules that need not be cut inside."""
    prefix = f"{name}." if name else ""
    if not any(cut.startswith(prefix) and cut != name for cut in cuts):
        return [name]
    own = [key for key, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]]
    if own:
        raise UsageError(
            f"{prefix}{own[0]} would belong to no stage, as {name or 'the model'} is cut",
            fix="put it in a module of its own, or train without --pp",
        )
    return [piece for key, child in module.named_children() for piece in _pieces(child, f"{prefix}{key}", cuts)]
