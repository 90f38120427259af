"""Every strategy, and combinations of them, train as one process does. ``make parity`` tries all, by every backend."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.launching import ok
from tests.layouts import case, each_of, needing
from tests.programs.layouts.deviations import largest
from tests.results import refused
from tests.turns import Turns

EXACT = ("--dtype", "float64", "--batch-size", "8")

# What covers the parts of runner/parallel. Those with a factory's model are materialized after sharding.
COVERING = (
    case(2, "--strategy fsdp --meta --tied"),
    case(2, "--strategy fsdp --frozen --clip-norm 0.1 --micro-batches 2"),
    case(2, "--strategy fsdp --activation-checkpointing full --offload cpu"),
    case(2, "--strategy fsdp --activation-checkpointing full --compile"),
    case(2, "--strategy zero1 --clip-norm 0.1 --micro-batches 2 --frozen"),
    case(2, "--tp 2 --meta --tied"),
    case(2, "--tp 2 --meta --tied --compile"),
    case(2, "--tp 2 --sequence-parallel --loss-parallel --clip-norm 0.1 --frozen", also=["frozen"]),
    case(2, "--tp 2 --frozen --clip-norm 0.1 --activation-checkpointing selective", also=["frozen"]),
    case(2, "--pp 2 --micro-batches 4 --pp-schedule gpipe --frozen --tied --clip-norm 0.1"),
    case(2, "--pp 2 --only-head --clip-norm 0.01", also=["idle stage"]),
    case(2, "--strategy local-sgd --sync-every 1 --sgd"),
    case(4, "--strategy fsdp --replicate 2 --clip-norm 0.1 --meta --micro-batches 4"),
    case(4, "--strategy fsdp --tp 2 --order 0,3,2,1 --meta"),
    case(4, "--pp 2 --meta --clip-norm 0.1"),
    case(4, "--pp 4 --micro-batches 8 --pp-schedule dualpipev"),
    case(4, "--strategy fsdp --pp 2 --pp-schedule zbv --micro-batches 4"),
    case(
        4,
        "--strategy fsdp --pp 2 --pp-schedule interleaved-zero-bubble --micro-batches 4 --clip-norm 0.1 --meta --tied",
    ),
    case(4, "--pp 2 --tp 2 --pp-schedule interleaved1f1b --micro-batches 4 --activation-checkpointing full"),
    case(4, "--strategy zero1 --order 0,2,1,3 --clip-norm 0.1"),
    case(4, "--strategy fsdp --replicate 2 --order 0,2,1,3 --clip-norm 0.1"),
    case(8, "--strategy fsdp --tp 2 --pp 2 --micro-batches 4"),
)


@pytest.mark.parametrize(("ranks", "options"), COVERING)
def test_the_losses_and_weights_are_those_of_one_process(ranks: int, options: str, turns: Turns) -> None:
    done = ok(turns(ranks, "parity", *EXACT, *options.split(), "--steps", "10"))
    assert deviation(done) < 1e-9


def deviation(done: subprocess.CompletedProcess[str]) -> float:
    """How far losses, weights or outputs are from those of one process."""
    found = json.loads(done.stdout.partition("parity ")[2])
    return largest([found["loss"], found["weights"], found["outputs"]])


@pytest.fixture(scope="module")
def by_gloo() -> Iterator[Turns]:
    with contextlib.closing(Turns("--backend", "gloo")) as turns:
        yield turns


@each_of(
    (2, "--strategy fsdp --clip-norm 0.1"),
    (2, "--strategy zero1 --micro-batches 2"),
    (2, "--tp 2 --sequence-parallel --loss-parallel"),
    (2, "--pp 2 --pp-schedule zbv --micro-batches 4 --clip-norm 0.1"),
)
def test_by_gloo_too(ranks: int, layout: str, by_gloo: Turns) -> None:
    done = ok(by_gloo(ranks, "parity", *EXACT, *layout.split(), "--steps", "4"))
    assert deviation(done) < 1e-9


@each_of((4, "--strategy fsdp"), (4, "--strategy fsdp --tp 2"), (4, "--tp 2 --pp 2 --micro-batches 4"))
def test_in_single_precision_losses_and_weights_stay_together(ranks: int, layout: str, turns: Turns) -> None:
    done = ok(turns(ranks, "parity", "--batch-size", "8", *layout.split(), "--steps", "10"))
    assert deviation(done) < 1e-5


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        case(2, f"{layout} --precision {precision}")
        for precision, layout in (
            ("bf16", "--strategy fsdp"),
            ("bf16", "--strategy ddp"),
            ("bf16", "--strategy zero1"),
            ("bf16", "--tp 2"),
            ("bf16", "--pp 2 --micro-batches 2"),
            ("fp16", "--strategy fsdp"),
            ("fp16", "--strategy ddp"),
            ("fp16", "--pp 2 --micro-batches 4 --pp-schedule zbv"),
        )
    ],
)
def test_in_less_precision_losses_stay_near(ranks: int, options: str, turns: Turns) -> None:
    done = ok(turns(ranks, "parity", "--batch-size", "8", *options.split(), "--steps", "5"))
    found = json.loads(done.stdout.partition("parity ")[2])
    assert 1e-7 < found["loss"] < 0.02, found  # it is not the same, or nothing was cast


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        case(2, f"--precision fp16 {layout}")
        for layout in ("--tp 2", "--strategy fsdp", "--strategy zero1", "--pp 2 --micro-batches 2")
    ],
)
def test_a_step_that_overflows_on_one_rank_is_left_out_by_all(ranks: int, options: str, turns: Turns) -> None:
    done = ok(turns(ranks, "overflows", *options.split()))
    for found in json.loads(done.stdout.partition("found ")[2]):
        scale = found[0]
        assert found[1:] == [[scale, True], [scale / 2, False], [scale / 2, True]]


@pytest.mark.needs("pp", "replicas", "idle stage")
def test_a_stage_without_gradients_leaves_out_the_same_steps(turns: Turns) -> None:
    done = ok(turns(2, "overflows", "--precision", "fp16", "--pp", "2", "--micro-batches", "2", "--only-head"))
    first, last = json.loads(done.stdout.partition("found ")[2])
    scale = first[0]
    assert first[1:] == [[scale, False], [scale / 2, False], [scale / 2, False]]
    assert last[1:] == [[scale, True], [scale / 2, False], [scale / 2, True]]


@needing((4, "--strategy fsdp"), (4, "--strategy fsdp --tp 2"), (4, "--pp 4 --pp-schedule gpipe"))
def test_a_rank_has_its_share_of_the_parameters(turns: Turns) -> None:
    counts, of_all = {}, {}
    for options in ("", "--strategy fsdp", "--strategy fsdp --tp 2", "--pp 4 --pp-schedule gpipe"):
        done = ok(turns(4, "parity", *EXACT, *options.split(), "--steps", "1"))
        found = json.loads(done.stdout.partition("parity ")[2])
        counts[options], of_all[options] = found["parameters"], found["parameters_of_all"]
    whole = counts[""]
    assert counts["--strategy fsdp"] <= 1.05 * whole / 4
    assert counts["--strategy fsdp --tp 2"] <= 1.2 * whole / 4  # norms, embedding and head are not sharded by --tp here
    assert counts["--pp 4 --pp-schedule gpipe"] < whole / 2  # stages are equal in time, not in parameters
    assert of_all["--pp 4 --pp-schedule gpipe"] == whole  # each is on one stage


@pytest.mark.parametrize(
    ("ranks", "options", "told"),
    [
        case(2, "--pp 2 --pp-schedule zbv --micro-batches 4", "this schedule has their stages (0 and 3) on one rank"),
        case(2, "--tp 2 --sequence-parallel", "and the two are not sharded alike"),  # here only the head is sharded
    ],
)
def test_a_tied_weight_is_not_cut_from_its_twin(ranks: int, options: str, told: str, turns: Turns) -> None:
    done = turns(ranks, "parity", *EXACT, "--tied", "--meta", *options.split())
    refused(done, "head.weight is tied to embed.weight,", told)


@pytest.mark.parametrize(
    ("workload", "options", "told"),
    [
        pytest.param(
            "workloads.linear",
            "--tp 2",
            "--tp 2: it does not say how its layers are sharded (Plan.tensor)",
            marks=pytest.mark.needs("tp"),
        ),
        ("faulty", "--activation-checkpointing full", "it names no units to compute again (Plan.shard)"),
    ],
)
def test_what_a_plan_does_not_say_is_refused(workload: str, options: str, told: str, turns: Turns) -> None:
    refused(turns(2, workload, *options.split()), "this workload cannot be trained with", told)


@needing((2, "--pp=2"), (2, "--strategy=fsdp"))
def test_a_module_that_cannot_be_filled_is_refused_also_where_it_is_in_one_stage_only(turns: Turns) -> None:
    for layout in ("--pp=2", "--strategy=fsdp"):
        refused(turns(2, "uninitialised", layout), "runner: 1 (Scaled) ")
    refused(turns(2, "uninitialised", "--buffer", "--strategy=fsdp"), "1 (Masked)", " mask")
    refused(turns(2, "uninitialised", "--buffer", "--pp=2"), "rank 1 of 2", " mask")
