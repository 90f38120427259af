"""The formulas of ``plan``: as properties, against torch's own objects, and against small cases done by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

from runner.base.errors import UsageError
from runner.options.command import given_in
from runner.parallel.mesh import lay_out
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Plan, Task
from runner.tools.plan.layouts import Candidate, Cluster, candidates
from runner.tools.plan.memory import Memory
from runner.tools.plan.optimizers import state_rule
from runner.tools.plan.planner import fake_process_group
from runner.tools.plan.planning import Planned, plan_layout
from runner.tools.plan.ranking import ranked, reason
from runner.tools.plan.report import flags
from runner.tools.plan.schedules import idle_share, most_held
from runner.tools.plan.tracing import Tracer
from runner.versions.torch_build import release_of
from tests.campaigns.sweep.cases import CASES
from tests.campaigns.sweep.plans import outcome

PLAN = Plan(
    shard=("layers.*",),
    tensor={"layers.*.0": ColwiseParallel(), "layers.*.2": RowwiseParallel()},
    pipeline=("layers.*",),
)


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    with fake_process_group(8):
        yield


def schedule(name: str, p: int, v: int, m: int) -> ParallelSettings:
    return ParallelSettings(pp_schedule=name, pp=p, stages_per_rank=v, micro_batches=m)


@given(st.integers(2, 12), st.integers(1, 40))
def test_the_bubble_of_gpipe_and_1f1b(p: int, m: int) -> None:
    for name, count in (("gpipe", m), ("1f1b", max(m, p))):
        options = schedule(name, p, 1, count)
        assert idle_share(options) == pytest.approx((p - 1) / (count + p - 1))
        held = [most_held(options, rank, {rank: 1}) for rank in range(p)]
        assert held == [count if name == "gpipe" else p - rank for rank in range(p)]


def test_without_a_pipeline_one_micro_batch_is_held() -> None:
    options = ParallelSettings(micro_batches=4)
    assert (idle_share(options), most_held(options, 0, {0: 7})) == (0, 7)


# The number of micro-batches that each rank holds, in the order of torch's schedule.
@pytest.mark.parametrize(
    ("name", "held", "idle"),
    [
        ("interleaved1f1b", [11, 9, 7, 5], 3 / 35),
        ("interleaved-zero-bubble", [8, 8, 8, 8], 1 / 33),
        ("zbv", [8, 8, 8, 8], 1 / 33),
        ("dualpipev", [9, 9, 9, 9], 1 / 33),
    ],
)
@pytest.mark.usefixtures("eight_ranks")
def test_schedules_with_several_stages_per_rank(name: str, held: list[int], idle: float) -> None:
    options = schedule(name, 4, 2, 16)
    assert [most_held(options, rank, dict.fromkeys(range(8), 1)) for rank in range(4)] == held
    assert idle_share(options) == pytest.approx(idle)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


def task(model: nn.Module | None = None) -> Task:
    data = TensorDataset(torch.zeros(64, 16), torch.zeros(64, 16))
    return Task(model=model or Net, loss=nn.MSELoss(), optimizer=torch.optim.AdamW, train_data=data, plan=PLAN)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_is_that_of_a_step(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Linear(9, 13), nn.LayerNorm(13))
    model[2].bias.requires_grad_(False)
    rule = state_rule(OPTIMIZERS[name], model)
    optimizer = OPTIMIZERS[name](model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    for key, parameter in model.named_parameters():
        state = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
        assert rule.bytes(key, parameter.shape) == sum(one.numel() * one.element_size() for one in state)


def test_activations_are_what_autograd_saves() -> None:
    tracer = Tracer(task(), torch.float32)
    traced = tracer.trace(ParallelSettings(), 8, casts_parameters=False)
    inner, outer = 4 * 8 * 32, 4 * 8 * 16
    # The sum before the ReLU is not kept, its result is, and the layer's output, which the next one keeps.
    assert [one.kept for one in traced.passes[1:3]] == [inner + outer] * 2
    assert traced.passes[0].kept == inner + outer + 2 * outer  # and the batch
    again = ParallelSettings(activation_checkpointing="full")
    kept = Tracer(task(), torch.float32).trace(again, 8, casts_parameters=False).passes
    assert kept[1].kept == outer
    assert kept[1].temporary >= inner


def kept(unit: nn.Module, checkpointing: str = "none") -> int:
    """Bytes that a layer between two others keeps of eight samples of 16 numbers each."""
    model, plan = nn.Sequential(nn.Linear(16, 16), unit, nn.Linear(16, 16)), Plan(shard=("*",), pipeline=("*",))
    tracer = Tracer(replace(task(model), plan=plan), torch.float32)
    options = ParallelSettings(activation_checkpointing=checkpointing)
    return tracer.trace(options, 8, casts_parameters=False).passes[1].kept


OUTPUT = 4 * 8 * 16  # bytes of a layer's output


def test_a_norm_and_dropout_keep_what_a_gpus_fused_kernels_keep() -> None:
    unit = nn.Sequential(nn.RMSNorm(16), nn.Dropout(0.1))
    assert kept(unit) == 8 * 4 + 8 * 16 + OUTPUT  # a number per row, a byte per element


def test_selective_recomputation_keeps_every_second_linear_layers_result() -> None:
    """As torchtitan. What follows is computed again: the nonlinear function's result, and of four products the even ones."""
    unit = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())))
    assert kept(unit, "selective") == 2 * OUTPUT + OUTPUT  # its own output is the last function's


@pytest.mark.usefixtures("eight_ranks")
def test_a_tensor_parallel_rank_has_a_part_of_each_layer() -> None:
    options = ParallelSettings(tp=4)
    traced = Tracer(task(), torch.float32).trace(options, 8, casts_parameters=False)
    inner, outer = 4 * 8 * 32, 4 * 8 * 16
    assert traced.passes[1].kept == inner // 4 + outer
    shapes = {one.name: one.shape for one in traced.parameters[1]}
    assert shapes["layers.1.0.weight"] == (8, 16)
    assert shapes["layers.1.2.weight"] == (16, 8)


def every(cluster: Cluster, **given: Any) -> list[Candidate]:
    return candidates(cluster, PLAN, ParallelSettings(), given, batch=32)[0]


@pytest.mark.parametrize(("gpus", "hosts"), [(1, 1), (4, 1), (6, 2), (8, 2), (16, 4)])
def test_layouts_use_all_gpus_and_divide_layers_within_hosts(gpus: int, hosts: int) -> None:
    found = every(Cluster(gpus=gpus, hosts=hosts))
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert one.degrees.data * one.degrees.pipeline * one.degrees.tensor == gpus
        assert (gpus // hosts) % one.degrees.tensor == 0
        assert not Cluster(gpus=gpus, hosts=hosts).spans_hosts(one.layout, "tensor")


@pytest.mark.parametrize(("gpus", "hosts"), [(1, 1), (6, 1), (8, 1), (12, 2), (11, 11), (64, 8)])
def test_a_host_has_up_to_eight_gpus_unless_it_is_said(gpus: int, hosts: int) -> None:
    assert Cluster.of(gpus).hosts == hosts
    assert Cluster.of(gpus, gpus).hosts == 1


class Heads(nn.Module):
    """A layer that has four heads, of four numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Unflatten(-1, (-1, 4)), nn.Flatten(-2))])

    def forward(self, values: Tensor) -> Tensor:
        return self.layers[0](values)


@pytest.mark.usefixtures("eight_ranks")
def test_a_layout_in_which_the_model_does_not_run_is_none() -> None:
    plan = Plan(tensor={"layers.*.0": ColwiseParallel(use_local_output=True)})
    loss = nn.Module()
    loss.forward = lambda outputs, targets: outputs.sum()  # type: ignore[method-assign]
    made = replace(task(Heads), plan=plan, loss=loss)
    cluster, tracer = Cluster(gpus=8, hosts=1), Tracer(made, torch.float32)
    rule = state_rule(torch.optim.AdamW, tracer.model)
    found = candidates(cluster, plan, ParallelSettings(), {"strategy": "ddp"}, batch=8)[0]
    for one in found:
        if one.options.tp < 8:
            plan_layout(one, tracer, rule)
        else:
            with pytest.raises(UsageError, match="plan cannot follow the model with --tp 8 by the shapes"):
                plan_layout(one, tracer, rule)


@pytest.mark.needs("plan of sharded layers")
def test_what_is_given_restricts_the_layouts() -> None:
    cluster = Cluster(gpus=8, hosts=2)
    assert {one.options.tp for one in every(cluster, tp=2)} == {2}
    (across_hosts, *_) = every(Cluster(gpus=8, hosts=4), tp=4)  # as a run takes it if it is asked for
    assert across_hosts.options.tp == 4
    assert [one.name for one in every(cluster, strategy="fsdp", tp=1, pp=1)] == ["fsdp 8", "fsdp 2×4", "fsdp 4×2"]
    assert {one.options.pp_schedule for one in every(cluster, pp=2, pp_schedule="gpipe")} == {"gpipe"}


def test_where_no_layout_is_possible_the_first_reason_is_said() -> None:
    with pytest.raises(UsageError, match=r"no layout of 8 GPUs is possible: .*Plan\.tensor"):
        candidates(Cluster(gpus=8, hosts=1), Plan(), ParallelSettings(), {"tp": 2}, batch=32)


@pytest.mark.needs("plan of sharded layers")
@pytest.mark.parametrize(("given", "alike"), [({}, "ddp"), ({"tp": 2}, "ddp"), ({"replicate": 2}, "fsdp")])
@pytest.mark.usefixtures("eight_ranks")
def test_a_strategy_of_another_package_is_planned_as_whole_or_with_copies_as_sharded(
    given: dict[str, Any], alike: str
) -> None:
    cluster, tracer = Cluster(gpus=8, hosts=2), Tracer(task(), torch.float32)
    rule = state_rule(torch.optim.AdamW, tracer.model)
    theirs, own = (plan_layout(every(cluster, strategy=name, **given)[0], tracer, rule) for name in ("theirs", alike))
    assert theirs.by_stage == own.by_stage


def planned(one: Candidate, total: int = 0) -> Planned:
    memory = Memory(parameters=total, gradients=0, optimizer=0, activations=0, gathered=0)
    return Planned(candidate=one, by_stage=(memory,))


@pytest.mark.parametrize(
    "options",
    [
        "--strategy ddp",
        "--strategy fsdp --replicate 2 --activation-checkpointing full --offload cpu --precision bf16 --compile",
        "--strategy fsdp --tp 2 --pp 2 --sequence-parallel --pp-schedule interleaved1f1b --stages-per-rank 4 --micro-batches 8",
        "--strategy local-sgd --sync-every 4 --outer-optimizer nesterov",
    ],
)
def test_the_options_of_a_layout_make_it(options: str) -> None:
    wanted = given_in(options.split()).parallel()
    layout = lay_out(Cluster(gpus=8, hosts=1).topology(), wanted.degrees(8))
    told = flags(planned(Candidate(options=wanted, layout=layout, batch=32)))
    assert sorted(told.split()) == sorted(options.split())


@pytest.mark.needs("plan of sharded layers")
def test_layouts_that_fit_are_in_the_order_of_the_slides() -> None:
    cluster = Cluster(gpus=8, hosts=2)
    found = ranked([planned(one) for one in reversed(every(cluster))], cluster, 100)
    assert [one.candidate.name for one in found[:14]] == [
        *("ddp 8", "zero1 8", "fsdp 2×4", "fsdp 4×2", "fsdp 8", "pp 8"),
        *("ddp 4, tp 2", "ddp 2, tp 4", "ddp 4, pp 2", "ddp 2, pp 4"),
        *("fsdp 2×2, tp 2", "fsdp 4, tp 2", "fsdp 2, tp 4", "fsdp 4, pp 2"),
    ]
    assert {len(one.candidate.name.split(",")) for one in found[-2:]} == {3}


@pytest.mark.needs("plan of sharded layers")
def test_layouts_that_divide_only_the_data_come_first_and_of_these_what_computes_least_again() -> None:
    cluster = Cluster(gpus=8, hosts=1)
    plans = [planned(more) for one in every(cluster, replicate=None) for more in one.recomputing()]
    found = ranked(plans[::-1], cluster, 100)
    told = [(one.candidate.name, one.candidate.options.activation_checkpointing) for one in found[:9]]
    single = [(name, how) for how in ("none", "selective", "full") for name in ("ddp 8", "zero1 8", "fsdp 8")]
    assert told == single
    assert {one.candidate.name for one in found[9:15]} == {"tp 8", "pp 8"}


@pytest.mark.parametrize(
    ("too_large", "recommended", "failed"),
    [
        ({}, "ddp 8", ""),
        ({"ddp 8": 300}, "zero1 8", "ddp 8 300 B"),
        ({"ddp 8": 300, "zero1 8": 200}, "fsdp 2×4", "ddp 8 300 B, zero1 8 200 B"),
    ],
)
def test_the_simplest_that_fits_is_recommended(too_large: dict[str, int], recommended: str, failed: str) -> None:
    cluster = Cluster(gpus=8, hosts=2)
    plans = ranked([planned(one, too_large.get(one.name, 50)) for one in every(cluster)], cluster, 100)
    assert plans[0].candidate.name == recommended
    why = "it is the simplest that fits: it needs 50 B of 100 B per GPU"
    assert reason(plans, 100) == why + (f" (too much: {failed})" if failed else "")


@pytest.mark.needs("plan of sharded layers")
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_no_model_and_no_optimizer_ends_it_in_a_traceback() -> None:
    found = {name: outcome(name) for name in CASES}
    assert {name: detail for name, (what, detail) in found.items() if what == "FAILS"} == {}
    assert {name for name, (what, _) in found.items() if what == "refused"} == {
        *("lazy", "LBFGS", "SparseAdam", "sparse embedding", "sparse only")
    }
    before_2_15 = () if release_of(torch.__version__) >= (2, 15) else ("Rprop",)
    for name in ("integer", "Adafactor", *before_2_15):  # whose layouts a run would refuse
        assert "left out: 1 layout: " in found[name][1], name
    assert "--precision bf16: factor is complex" in found["complex"][1]
    assert found["number"] == found["weight norm"] == found["old weight norm"] == ("planned", "")
