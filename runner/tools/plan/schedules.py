"""What a pipeline schedule costs: idle time, and how many micro-batches a stage holds. From torch's own order of actions.

The time unit is a stage's forward pass of a micro-batch; a backward pass takes two, of which zero-bubble schedules do the
inputs' and the weights' gradients apart, one each (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241).
Messages take no time. For GPipe and 1F1B this gives (p-1) ÷ (m+p-1) idle, which is the slides' (p-1) ÷ m of the time that is
not idle, and for interleaved 1F1B with v stages per rank (p-1) ÷ (v·m+p-1) (Narayanan et al., arXiv:2104.04473, 2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from runner.parallel.settings import SCHEDULES, ParallelSettings

_TIMES = {"forward": 1, "backward": 2, "inputs": 1, "weights": 1}
_KINDS = {  # torch's names of them
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "inputs",
    "BACKWARD_WEIGHT": "weights",
}


_FREES = ("backward", "weights")  # what a stage saved of a micro-batch is needed until then


class Action(NamedTuple):
    """A pass of one micro-batch through one stage."""

    kind: str
    stage: int
    micro_batch: int


class PipelinePass(NamedTuple):
    """An action of a rank. Times since the first of the step began."""

    rank: int
    action: Action
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline. The passes of each rank are in its order."""

    passes: tuple[PipelinePass, ...]

    @cached_property
    def idle(self) -> float:
        """The share of the ranks' time in which they are in no pass."""
        busy = sum(one.end - one.start for one in self.passes)
        return 1 - busy / (max(one.end for one in self.passes) * len({one.rank for one in self.passes}))

    def largest(self, rank: int, sizes: Mapping[int, int]) -> int:
        """The most that a rank holds at a time, if a micro-batch takes ``sizes[stage]`` from its forward to its backward pass."""
        return max(sum(count * sizes[stage] for stage, count in held) for held in self._held[rank])

    @cached_property
    def _held(self) -> Mapping[int, list[tuple[tuple[int, int], ...]]]:
        """By rank: how many micro-batches of each stage are held after each forward pass; each set once."""
        counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        seen: dict[int, dict[tuple[tuple[int, int], ...], None]] = defaultdict(dict)
        for rank, action, _, _ in self.passes:
            if action.kind == "forward":
                counts[rank][action.stage] += 1
                seen[rank][tuple(sorted(counts[rank].items()))] = None
            elif action.kind in _FREES:
                counts[rank][action.stage] -= 1
        return {rank: list(held) for rank, held in seen.items()}


def timeline(options: ParallelSettings) -> Timeline:
    """A step under the options' schedule, with ``pp``, ``stages_per_rank`` and ``micro_batches``.

    The process group has ``pp`` ranks or more.
    """
    if options.pp == 1:
        return _timeline("1f1b", 1, 1, options.micro_batches)  # accumulated gradients: one micro-batch after the other
    return _timeline(options.pp_schedule, options.pp, options.stages_per_rank, options.micro_batches)


@cache
def _timeline(schedule: str, ranks: int, stages_per_rank: int, micro_batches: int) -> Timeline:
    options = ParallelSettings(
        pp_schedule=schedule, pp=ranks, stages_per_rank=stages_per_rank, micro_batches=micro_batches
    )
    order = _SINGLE[schedule](ranks, micro_batches) if schedule in _SINGLE else _torch_order(options)
    return Timeline(tuple(_passes(order)))


def _gpipe(ranks: int, micro_batches: int) -> list[list[Action]]:
    every = range(micro_batches)
    return [
        [Action(kind, rank, number) for kind in ("forward", "backward") for number in every] for rank in range(ranks)
    ]


def _one_f_one_b(ranks: int, micro_batches: int) -> list[list[Action]]:
    """Each rank does as many forward passes as there are stages from it on; then backward and forward in turn."""
    order = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        actions = [Action("forward", rank, number) for number in range(ahead)]
        for number in range(micro_batches):
            actions.append(Action("backward", rank, number))
            if ahead + number < micro_batches:
                actions.append(Action("forward", rank, ahead + number))
        order.append(actions)
    return order


_SINGLE = {"gpipe": _gpipe, "1f1b": _one_f_one_b}


def _torch_order(options: ParallelSettings) -> list[list[Action]]:
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
    kind: Any = get_schedule_class(SCHEDULES[options.pp_schedule].name)
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


def _passes(order: Sequence[Sequence[Action]]) -> Iterator[PipelinePass]:
    """When each action begins and ends.

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
                start = max(clocks[rank], ends[needed] if needed else 0)
                clocks[rank] = start + _TIMES[action.kind]
                side = "backward" if action.kind == "inputs" else action.kind
                ends[side, action.stage, action.micro_batch] = clocks[rank]
                done[rank] += 1
                yield PipelinePass(rank, action, start, clocks[rank])
        assert sum(done) > before, "the schedule waits for itself"


def _needs(action: Action, stages: int) -> tuple[str, int, int] | None:
    if action.kind == "forward":
        return ("forward", action.stage - 1, action.micro_batch) if action.stage else None
    if action.kind == "weights":
        return None  # its rank has done the other part
    return ("backward", action.stage + 1, action.micro_batch) if action.stage + 1 < stages else None
