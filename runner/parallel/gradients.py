"""The norm of all gradients, wherever their shards are, and its limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.parallel.state import full_tensor, local_tensor
from runner.versions.torch_api import clip, total_norm
from runner.versions.torch_private import values_of


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter],
    limit: float,
    pipeline: dist.ProcessGroup | None = None,
    copies: Iterable[nn.Parameter] = (),
) -> Tensor:
    """Scale the gradients down if the norm of all of them is above a limit. Collective if they are sharded.

    Args:
        pipeline: the ranks that have the model's other stages.
        copies: of parameters of other stages. They count there, and are scaled here.

    Returns:
        The norm before, the same on all ranks: a scalar.
    """
    parameters = list(parameters)
    sum_gradients(parameters)
    by_mesh: dict[Any, list[Any]] = defaultdict(list)  # torch's functions take DTensors of one mesh
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh[getattr(parameter.grad, "device_mesh", None)].append(parameter)
    elsewhere = {id(copy) for copy in copies}
    counted = [[one.grad for one in group if id(one) not in elsewhere] for group in by_mesh.values()]
    norms = [full_tensor(total_norm(gradients)) for gradients in counted if gradients]
    nothing = torch.zeros((), dtype=parameters[0].dtype, device=parameters[0].device)  # a stage's that trains nothing
    square = torch.stack(norms).square().sum() if norms else nothing
    if pipeline is not None:
        dist.all_reduce(square, group=pipeline)
    norm = square.sqrt()
    for group in by_mesh.values():
        clip(group, limit, norm)
    return norm


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Place gradients as their parameters. Before torch 2.12 that of a sequence-parallel norm is not summed after a backward pass."""
    one: Any
    for one in parameters:
        if one.grad is not None and getattr(one.grad, "placements", None) != getattr(one, "placements", None):
            one.grad = one.grad.redistribute(placements=one.placements)


def own_gradients(model: nn.Module) -> dict[str, Tensor]:
    """This rank's shard of each gradient, by the parameter's name; of a sparse one its values."""
    shards = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            shard: Any = local_tensor(parameter.grad)
            shards[name] = values_of(shard) if shard.is_sparse else shard
    return shards
