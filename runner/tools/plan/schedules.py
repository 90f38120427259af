"""What a pipeline schedule costs: idle time, and how many micro-batches a stage holds. From torch's own order of actions.

The time unit is a stage's forward pass of a micro-batch; a backward pass takes two, of which zero-bubble schedules do the
inputs' and the weights' gradients apart, one each (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241).
Messages take no time. For GPipe and 1F1B this gives (p-1) ÷ (m+p-1) idle, which is the slides' (p-1) ÷ m of the time that is
not idle, and for interleaved 1F1B with v stages per rank (p-1) ÷ (v·m+p-1) (Narayanan et al., arXiv:2104.04473, 2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from runner.parallel.options import SCHEDULES, ParallelOptions

_TIMES = {"F": 1, "B": 2, "I": 1, "W": 1}
_KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}  # torch's names of them
_FREES = "BW"  # what a stage saved of a micro-batch is needed until then


@dataclass(frozen=True)
class Action:
    """A pass of one micro-batch through one stage: F forward, B backward, I and W its two parts."""

    kind: str
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Timeline:
    """Of one step.

    Attributes:
        idle: the share of all ranks' time that is not spent computing.
        held: per rank, the sets of micro-batches held at a time, by stage: how many of each.
    """

    idle: float
    held: tuple[tuple[Mapping[int, int], ...], ...]

    def largest(self, rank: int, sizes: Mapping[int, int]) -> int:
        """The most that a rank holds at a time, where a micro-batch takes ``sizes[stage]``."""
        return max(sum(count * sizes[stage] for stage, count in held.items()) for held in self.held[rank])


def timeline(options: ParallelOptions) -> Timeline:
    """A step under the options' schedule, with ``pp``, ``stages_per_rank`` and ``micro_batches``.

    The process group has ``pp`` ranks or more.
    """
    if options.pp == 1:
        return Timeline(0.0, (({0: 1},),))  # accumulated gradients: one micro-batch after the other
    return _timeline(options.schedule, options.pp, options.stages_per_rank, options.micro_batches)


@cache
def _timeline(schedule: str, ranks: int, stages_per_rank: int, micro_batches: int) -> Timeline:
    options = ParallelOptions(schedule=schedule, pp=ranks, stages_per_rank=stages_per_rank, micro_batches=micro_batches)
    order = _SINGLE[schedule](ranks, micro_batches) if schedule in _SINGLE else _torch_order(options)
    return Timeline(idle_share(order), tuple(_held(actions) for actions in order))


def _gpipe(ranks: int, micro_batches: int) -> list[list[Action]]:
    every = range(micro_batches)
    return [[Action(kind, rank, number) for kind in "FB" for number in every] for rank in range(ranks)]


def _one_f_one_b(ranks: int, micro_batches: int) -> list[list[Action]]:
    """Each rank does as many forward passes as there are stages from it on; then backward and forward in turn."""
    order = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        actions = [Action("F", rank, number) for number in range(ahead)]
        for number in range(micro_batches):
            actions.append(Action("B", rank, number))
            if ahead + number < micro_batches:
                actions.append(Action("F", rank, ahead + number))
        order.append(actions)
    return order


_SINGLE = {"gpipe": _gpipe, "1f1b": _one_f_one_b}


def _torch_order(options: ParallelOptions) -> list[list[Action]]:
    """The order that torch's schedule has made."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    owners = options.stage_owners
    group: Any = dist.new_group(list(range(options.pp)))
    stages = [
        PipelineStage(nn.Identity(), number, len(owners), torch.device("cpu"), group=group)
        for number, owner in enumerate(owners)
        if owner == 0
    ]
    kind: Any = get_schedule_class(SCHEDULES[options.schedule].name)
    schedule = kind(stages, options.micro_batches, loss_fn=lambda outputs, _: outputs)
    order: Mapping[int, Sequence[Any]] = schedule.pipeline_order
    return [[action for one in order[rank] for action in _actions(one)] for rank in range(options.pp)]


def _actions(one: Any) -> list[Action]:
    if one is None:  # it waits
        return []
    if getattr(one, "sub_actions", None):  # they overlap; here one after the other
        return [action for sub in one.sub_actions for action in _actions(sub)]
    kind = _KINDS.get(one.computation_type.name)
    return [Action(kind, one.stage_index, one.microbatch_index)] if kind else []


def idle_share(order: Sequence[Sequence[Action]]) -> float:
    """The share of the ranks' time that is not spent computing, from the first action's start to the last one's end.

    A rank does its actions in order. A forward pass waits for that of the stage before, a backward pass for that of the
    stage after.
    """
    ends: dict[tuple[str, int, int], int] = {}
    last = 1 + max(action.stage for actions in order for action in actions)
    clocks, done = [0] * len(order), [0] * len(order)
    while any(done[rank] < len(actions) for rank, actions in enumerate(order)):
        before = sum(done)
        for rank, actions in enumerate(order):
            while done[rank] < len(actions):
                action = actions[done[rank]]
                needed = _needs(action, last)
                if needed is not None and needed not in ends:
                    break
                clocks[rank] = max(clocks[rank], ends[needed] if needed else 0) + _TIMES[action.kind]
                side = "F" if action.kind == "F" else "W" if action.kind == "W" else "B"
                ends[side, action.stage, action.micro_batch] = clocks[rank]
                done[rank] += 1
        assert sum(done) > before, "the schedule waits for itself"
    busy = sum(_TIMES[action.kind] for actions in order for action in actions)
    return 1 - busy / (len(order) * max(clocks))


def _needs(action: Action, stages: int) -> tuple[str, int, int] | None:
    if action.kind == "F":
        return ("F", action.stage - 1, action.micro_batch) if action.stage else None
    if action.kind == "W":
        return None  # its rank has done the other part
    return ("B", action.stage + 1, action.micro_batch) if action.stage + 1 < stages else None


def _held(actions: Sequence[Action]) -> tuple[Mapping[int, int], ...]:
    """How many micro-batches of each stage are held, after each forward pass; each set once."""
    counts: dict[int, int] = defaultdict(int)
    seen: dict[tuple[tuple[int, int], ...], None] = {}
    for action in actions:
        if action.kind == "F":
            counts[action.stage] += 1
            seen[tuple(sorted(counts.items()))] = None
        elif action.kind in _FREES:
            counts[action.stage] -= 1
    return tuple(dict(held) for held in seen)
