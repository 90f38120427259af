"""Tasks: models and what makes them, and a model that is materialized after it was made on meta."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.data import TensorDataset

from runner.base.errors import UsageError
from runner.parallel import Setting, precision, support
from runner.parallel.materialize import materialize
from runner.parallel.pipeline.stages import submodel
from runner.parallel.settings import ParallelSettings
from runner.parallel.support import ParameterKind, supported_by
from runner.parallel.task import Plan, Task
from runner.parallel.trainer import Trainer
from runner.parallel.trees import to_device

CPU = torch.device("cpu")


def task(model: object, plan: Plan | None = None) -> Task:
    return Task(
        model=model,  # type: ignore[arg-type]
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.zeros(1)),
        plan=plan or Plan(),
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_a_factory_makes_the_same_weights_for_the_same_seed_whatever_was_random_before() -> None:
    def weights(seed: int, before: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        torch.rand(before)
        return list(task(net).build(CPU, torch.float64).state_dict().values())

    assert all(map(torch.equal, weights(0, 0), weights(0, 3)))
    assert not all(map(torch.equal, weights(0, 0), weights(1, 0)))
    before = torch.get_rng_state()
    assert next(task(net).build(CPU, torch.float64).parameters()).dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), before), "filling a model draws none of the user's random numbers"


@pytest.mark.needs("tp")
def test_what_a_factory_refuses_on_a_rank_is_told_by_that_rank() -> None:
    from runner.parallel.strategies.fsdp import fsdp

    def lacks_a_file() -> nn.Module:
        raise UsageError("there is no vocabulary on this host")

    mesh: Any = SimpleNamespace(mesh_dim_names=("data",))
    setting = Setting(device=CPU, dtype=torch.float32, mesh=mesh, options=ParallelSettings(strategy="fsdp"))
    with pytest.raises(UsageError, match="no vocabulary") as caught:
        fsdp(task(lacks_a_file), setting)
    assert not caught.value.on_all_ranks


def test_a_stage_is_materialized_as_the_full_model_is() -> None:
    whole = task(net).build(CPU, torch.float32)
    empty = task(net).on_meta(torch.float32)
    assert all(parameter.is_meta for parameter in empty.parameters())
    part = submodel(empty, ["0", "1", "2"], ["1", "2"])
    materialize(part, net, CPU)
    assert {name for name, _ in part.named_parameters()} == {"1.weight", "1.bias", "2.weight", "2.bias"}
    for name, tensor in part.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name


def test_a_module_that_cannot_be_initialised_is_refused() -> None:
    def scaled() -> nn.Module:
        model = nn.Module()
        model.scale = nn.Parameter(torch.ones(1))
        return model

    def masked() -> nn.Module:
        model = nn.Linear(1, 1)
        model.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        return model

    for made, problem in {scaled: r"has no reset_parameters\(\)", masked: "does not initialise mask"}.items():
        with pytest.raises(UsageError, match=rf"^1 .*{problem}; "):
            task(lambda made=made: nn.Sequential(nn.Linear(1, 1), made())).build(CPU, torch.float32)


def test_tied_parameters_stay_tied() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        return model

    model = task(tied).build(CPU, torch.float32)
    assert model[0].weight is model[1].weight  # type: ignore[index, union-attr]  # it is a Sequential


def test_a_plan_names_modules_by_patterns() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(1, 1) for _ in range(3)), "head": nn.Linear(1, 1)})
    assert Plan(shard=("layers.*", "head")).units(model) == [*model["layers"], model["head"]]  # type: ignore[misc]
    assert Plan().units(model) == []
    assert Plan(shard=("*",)).units(model) == [model["layers"], model["head"]]  # type: ignore[index]  # not the model itself
    deep = nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(1, 1)) for _ in range(2))})
    assert Plan(shard=("layers.*",)).units(deep) == [*deep["layers"]]  # type: ignore[misc]  # and nothing inside


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_a_step_is_the_same_in_any_number_of_micro_batches_and_clips_the_whole_gradient(micro_batches: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options = ParallelSettings(micro_batches=micro_batches, clip_norm=0.25)
    trainer = Trainer(task(model), model, torch.optim.SGD(model.parameters(), lr=1.0), options)
    inputs, targets = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    expected = nn.functional.mse_loss(model(inputs), targets)
    assert trainer.step((inputs, targets)).item() == pytest.approx(expected.item(), rel=1e-12)
    moved = torch.cat([(a - b).reshape(-1) for a, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("from_factory", [False, True])
def test_only_real_floating_point_tensors_get_the_dtype(from_factory: bool) -> None:
    def mixed() -> nn.Module:
        model = nn.Module()
        model.turn = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        model.fixed = nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
        model.weight = nn.Parameter(torch.zeros(2))
        for name, own in (("mask", torch.bool), ("mean", torch.bfloat16), ("rotation", torch.complex128)):
            model.register_buffer(name, torch.zeros(2, dtype=own))
        return model

    found = task(mixed if from_factory else mixed()).on_meta(torch.float64).state_dict()
    kept = {"turn": torch.complex64, "fixed": torch.uint8, "rotation": torch.complex128, "mask": torch.bool}
    expected = kept | dict.fromkeys(("weight", "mean"), torch.float64)
    assert {name: tensor.dtype for name, tensor in found.items()} == expected


def test_only_real_floating_point_inputs_and_targets_get_the_dtype() -> None:
    kept = (torch.uint8, torch.int64, torch.bool, torch.complex64)
    for own in (*kept, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        inputs, targets = to_device((torch.ones(2, dtype=own), torch.ones(2, dtype=own)), CPU, torch.float64)
        assert inputs.dtype == targets.dtype == (own if own in kept else torch.float64)


def test_the_parameters_of_a_unit_have_one_dtype() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    support.check_unit_dtypes(model, [model[1]])
    with pytest.raises(UsageError, match=r"0.bias is float32 and 1.bias is float64; name them apart"):
        support.check_unit_dtypes(model, [])


@pytest.mark.parametrize(
    ("loss", "fix"),
    [
        (nn.MSELoss(reduction="sum"), "take the mean, or return (sum, weight)"),
        (nn.BCEWithLogitsLoss(reduction="none"), "take the mean, or return (sum, weight)"),
        (partial(functional.mse_loss, reduction="sum"), "take the mean, or return (sum, weight)"),
        (
            nn.CrossEntropyLoss(weight=torch.ones(3)),
            "lambda outputs, targets: (F.cross_entropy(outputs, targets, weight=w, reduction='sum'), w[targets].sum())",
        ),
        (
            nn.NLLLoss(ignore_index=0),
            "lambda outputs, targets: (F.nll_loss(outputs, targets, ignore_index=0, reduction='sum'), (targets != 0).sum())",
        ),
        (partial(functional.cross_entropy, ignore_index=7), "ignore_index=7, reduction='sum'), (targets != 7).sum())"),
    ],
)
def test_a_loss_of_torch_that_is_no_mean_over_samples_is_refused_with_its_pair(loss: Any, fix: str) -> None:
    """So is a metric."""
    with pytest.raises(UsageError, match=r"the task's loss is \w+ with \w+=") as refused:
        replace(task(net()), loss=loss)
    assert str(refused.value).endswith(fix)
    with pytest.raises(UsageError, match="the task's metric ce is "):
        replace(task(net()), metrics={"ce": loss})


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.BCEWithLogitsLoss(weight=torch.ones(3), pos_weight=torch.ones(3)),
        nn.KLDivLoss(reduction="batchmean"),
        partial(functional.cross_entropy, label_smoothing=0.1),
        type("Own", (nn.CrossEntropyLoss,), {"__module__": "own"})(reduction="sum"),  # may return a pair
    ],
)
def test_a_loss_that_is_a_mean_over_samples_is_taken(loss: Any) -> None:
    replace(task(net()), loss=loss, metrics={"same": loss})


@pytest.mark.parametrize(("dtype", "how"), [(torch.float64, "bf16"), (torch.float16, "fp16")])
def test_a_precision_that_a_dtype_does_not_have_is_refused(dtype: torch.dtype, how: str) -> None:
    with pytest.raises(
        UsageError, match=rf"--precision {how}: 0.weight is float\d\d; leave it out, or add --dtype float32"
    ):
        precision.check(net().to(dtype), how)


@pytest.mark.parametrize("loss", [torch.zeros(3), torch.zeros((), dtype=torch.int64), 0.5, torch.zeros(()) * 1j])
def test_a_loss_is_one_real_number(loss: Any) -> None:
    odd = replace(task(net()), loss=lambda *_: loss)
    with pytest.raises(UsageError, match=r"the loss of a batch is .*reduction='mean'"):
        odd.loss_of_outputs(torch.zeros(3), torch.zeros(3))


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            of_kind = replace(task(net()), optimizer=kind)
            if kind is torch.optim.LBFGS:
                with pytest.raises(UsageError, match=r"LBFGS.step\(\) needs closure, and is called here without"):
                    of_kind.make_optimizer([nn.Parameter(torch.zeros(2, 2))])
            else:
                assert type(of_kind.make_optimizer([nn.Parameter(torch.zeros(2, 2))])) is kind


def test_an_optimizer_is_tried_by_a_copy_that_leaves_it_and_its_scheduler_alone() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}], momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    small = nn.Parameter(torch.zeros(2, 2))
    copied = support.copies_of(optimizer, support.kinds_of([weight]))([small])
    small.grad = torch.ones(2, 2)
    copied.step()
    assert copied.param_groups[0]["params"] == [small]
    assert small.tolist() == [[-0.5, -0.5], [-0.5, -0.5]]
    assert weight.tolist() == [[1, 1]] * 3
    assert not optimizer.state
    assert scheduler.optimizer is optimizer


def test_an_optimizer_with_a_scheduler_of_its_own_is_taken() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizer

    assert replace(task(net()), optimizer=make).make_optimizer([nn.Parameter(torch.zeros(2, 2))])


class Failing(torch.optim.SGD):
    """An optimizer that fails in its step."""

    error: Exception

    def step(self, closure: Any = None) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (RuntimeError("SparseAdam does not support dense gradients"), True),
        (NotImplementedError("no complex numbers"), True),
        (RuntimeError("[/pytorch/third_party/gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:1"), False),
        (RuntimeError("[/pytorch/third_party/gloo/unbound_buffer.cc:84] Timed out waiting 1000ms for recv"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), False),
        (getattr(torch, "AcceleratorError", torch.OutOfMemoryError)("CUDA error: an illegal memory access"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),  # (torch 2.4 has no AcceleratorError yet)
        (torch.distributed.DistBackendError("NCCL error"), False),
        (MemoryError(), False),
    ],
    ids=repr,
)
def test_what_befalls_a_rank_in_the_first_step_is_not_told_as_a_wrong_request(
    error: Exception, is_refused: bool
) -> None:
    made = task(nn.Linear(2, 1))
    model = made.build(CPU, torch.float32)
    optimizer = Failing(model.parameters(), lr=0.1)
    optimizer.error = error
    trainer = Trainer(made, model, optimizer, ParallelSettings())
    with pytest.raises(UsageError if is_refused else type(error)):
        trainer.step((torch.ones(4, 2), torch.ones(4, 1)))
    with pytest.raises(UsageError if is_refused else type(error)), supported_by("--strategy ddp"):
        raise error


@pytest.mark.parametrize(
    ("whole", "divided", "is_refused"),
    [(1.0, 1.0, False), (1.0, 9.0, True), (1.0, math.nan, True), (math.nan, math.nan, False)],
)
def test_an_optimizer_that_steps_divided_parameters_otherwise_is_refused(
    whole: float, divided: float, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped(_factory: Any, kinds: list[ParameterKind], mesh: object) -> list[torch.Tensor]:
        return [support._values(kind, 0) + (whole if mesh is None else divided) for kind in kinds]

    monkeypatch.setattr(support, "_stepped", stepped)
    with pytest.raises(UsageError, match="steps otherwise") if is_refused else nullcontext():
        support.check_steps(None, [ParameterKind(2, True, "float32")], MagicMock())


@pytest.mark.needs("tp")
def test_what_a_stage_of_a_pipeline_does_not_bear_is_told_by_the_ranks_that_have_it() -> None:
    from runner.parallel.sharded import parallelize

    model = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Linear(4, 1))
    mesh: Any = MagicMock(mesh_dim_names=("pipeline", "data"))
    mesh["pipeline"].size.return_value = 2
    setting = Setting(device=CPU, dtype=torch.float32, mesh=mesh, options=ParallelSettings(pp=2))
    with pytest.raises(UsageError, match="sparse gradients") as caught:
        parallelize(model, task(model), setting, shard=False, stage=1)
    assert not caught.value.on_all_ranks


@pytest.mark.needs("fsdp")
def test_after_an_evaluation_the_parameters_are_the_optimizers_again() -> None:
    """And not whole copies in bfloat16, in which a hook's changes would be lost."""
    from runner.parallel.strategies.fsdp import fsdp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
        options = ParallelSettings(strategy="fsdp", precision="bf16")
        made = task(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), Plan(shard=("0",)))
        trainer = fsdp(made, Setting(device=CPU, dtype=torch.float32, mesh=mesh, options=options))
        own = [id(one) for group in trainer.optimizer.param_groups for one in group["params"]]
        with torch.no_grad():
            trainer.outputs(torch.ones(2, 4))
        trainer.outputs_are_over()
        assert [id(one) for one in trainer.model.parameters()] == own
    finally:
        dist.destroy_process_group()
