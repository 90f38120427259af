"""Which options of parallelism go together, and the degrees that they ask for; without torch."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from runner.base.errors import UsageError
from runner.options.command import given_in
from runner.parallel.settings import SCHEDULES, ParallelSettings


@pytest.mark.parametrize(
    ("arguments", "degrees"),  # replicate, shard, pipeline, tensor
    [
        ("", (8, 1, 1, 1)),
        ("--tp 2", (4, 1, 1, 2)),
        ("--pp 4 --tp 2", (1, 1, 4, 2)),
        ("--strategy fsdp", (1, 8, 1, 1)),
        ("--strategy fsdp --replicate 2", (2, 4, 1, 1)),
        ("--strategy fsdp --replicate 2 --tp 2 --pp 2", (2, 1, 2, 2)),
        ("--strategy zero1 --lr 0.1 --unknown", (8, 1, 1, 1)),
    ],
)
def test_data_parallelism_takes_the_ranks_that_the_others_leave(arguments: str, degrees: tuple[int, ...]) -> None:
    assert astuple(given_in(arguments.split()).parallel().degrees(8)) == degrees


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--strategy zero1 --tp 2", "--strategy zero1 has the full model on every rank"),
        ("--strategy horovod --pp 2", "--strategy horovod has the full model on every rank"),
        ("--replicate 2", "--strategy ddp does not shard; take --strategy fsdp"),
        ("--strategy fsdp --replicate 8", "--replicate 8 is a whole model on each of the 8 ranks"),
        ("--offload cpu", "--strategy ddp does not shard; take --strategy fsdp"),
        ("--sequence-parallel", "add --tp 2 or more"),
        ("--loss-parallel", "add --tp 2 or more"),
        ("--stages-per-rank 2", "add --pp 2 or more"),
        ("--pp 2 --pp-schedule zbv --stages-per-rank 3", "takes 2 stages per rank, not 3"),
        ("--pp 2 --pp-schedule interleaved1f1b --stages-per-rank 1", "takes 2 or more stages per rank, not 1"),
        ("--pp 4 --micro-batches 2", "--micro-batches 2 is less than 4 × 1; take 4 or more"),
        ("--pp 2 --pp-schedule dualpipev --micro-batches 3", "--micro-batches 3 is less than 2 × 2; take 4 or more"),
        ("--pp 4 --pp-schedule interleaved1f1b --micro-batches 9", "does not divide into them; take a multiple of 4"),
        ("--pp 2 --pp-schedule zbv --activation-checkpointing selective", "take --activation-checkpointing full"),
        ("--pp 2 --pp-schedule zbv --compile", "take --pp-schedule 1f1b, or leave out --compile"),
        ("--strategy fsdp --comm-hook bf16", "leave it out with --strategy fsdp"),
        ("--tp 2 --comm-hook fp16", "leave it out with --strategy ddp and a sharded model"),
        ("--strategy horovod --comm-hook powersgd", "--strategy horovod compresses gradients to fp16 only"),
        ("--outer-optimizer nesterov", "take --strategy local-sgd"),
        ("--sync-every 4", "--sync-every 4 is local SGD's; take --strategy local-sgd"),
        ("--pp-schedule zbv", "--pp-schedule zbv is a pipeline's; add --pp 2 or more"),
        ("--strategy local-sgd --precision fp16", "scales gradients, which --strategy local-sgd cannot"),
        ("--tp two", "argument --tp: 'two'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(arguments: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_in(arguments.split()).parallel().degrees(8)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_defaults_that_go_together(schedule: str) -> None:
    assert given_in(["--pp", "4", "--pp-schedule", schedule]).parallel().degrees(8).pipeline == 4


def test_a_strategy_of_another_package_may_shard() -> None:
    """What it does not support it refuses itself."""
    assert astuple(ParallelSettings(strategy="theirs", replicate=2, tp=2).degrees(8)) == (2, 2, 1, 2)
    assert astuple(ParallelSettings(strategy="theirs").degrees(8)) == (8, 1, 1, 1)
