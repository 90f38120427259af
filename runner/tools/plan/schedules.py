"""Pipeline schedules: the idle time of a step, and the activations that a rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from runner.parallel.settings import SCHEDULES, ParallelSettings

# A stage keeps what it saved of a micro-batch from the forward pass until the backward pass is complete. Names are torch's.
_HELD_AFTER = {"FORWARD": 1, "FULL_BACKWARD": -1, "BACKWARD_WEIGHT": -1}


def idle_share(options: ParallelSettings) -> float:
    """Return the share of a step in which a rank waits for others in the pipeline, if messages take no time.

    A backward pass takes two forward passes. With v stages per rank the share is (p-1) ÷ (v·m+p-1) (Narayanan et al.,
    arXiv:2104.04473, 2.2). A schedule that splits the backward pass waits a third as long (Qi et al., arXiv:2401.10241).
    """
    waiting = (options.pp - 1) / (3 if SCHEDULES[options.pp_schedule].splits_backward else 1)
    return waiting / (options.stages_per_rank * options.micro_batches + waiting)


def most_held(options: ParallelSettings, rank: int, sizes: Mapping[int, int]) -> int:
    """Return the most bytes that a rank holds at once, if a micro-batch keeps ``sizes[stage]`` bytes in a stage.

    The default process group has ``options.pp`` ranks or more.
    """
    if options.pp_schedule == "gpipe":
        return options.micro_batches * sizes[rank]
    if options.pp_schedule == "1f1b":  # also without a pipeline: accumulated gradients
        return min(options.micro_batches, options.pp - rank) * sizes[rank]
    order = _order(options.pp_schedule, options.pp, options.stages_per_rank, options.micro_batches)
    held = most = 0
    for kind, stage in order[rank]:
        held += _HELD_AFTER.get(kind, 0) * sizes[stage]
        most = max(most, held)
    return most


@cache
def _order(schedule: str, ranks: int, stages_per_rank: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """Return the actions of each rank, in the order of torch's schedule: their kinds and stages."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    owners = ParallelSettings(
        pp_schedule=schedule, pp=ranks, stages_per_rank=stages_per_rank, micro_batches=micro_batches
    ).stage_owners
    group: Any = dist.new_group(list(range(ranks)))
    stages = [
        PipelineStage(nn.Identity(), number, len(owners), torch.device("cpu"), group=group)
        for number, owner in enumerate(owners)
        if owner == 0
    ]
    kind: Any = get_schedule_class(SCHEDULES[schedule].name)
    order: Mapping[int, Sequence[Any]] = kind(stages, micro_batches, loss_fn=lambda outputs, _: outputs).pipeline_order
    return [[action for one in order[rank] for action in _actions(one)] for rank in range(ranks)]


def _actions(one: Any) -> Iterator[tuple[str, int]]:
    if one is None:  # the rank waits
        return
    for action in getattr(one, "sub_actions", None) or [one]:  # actions that overlap count one after the other
        yield action.computation_type.name, action.stage_index
