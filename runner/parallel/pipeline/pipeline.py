"""Pipeline parallel: each rank has some of the layers, and micro-batches go through them under one of torch's schedules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from runner.backends.timing import synchronize
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import Setting
from runner.parallel.batch_forms import parts_of
from runner.parallel.gradients import sum_gradients
from runner.parallel.modes import evaluation_mode
from runner.parallel.pipeline.stages import balanced, segments, submodel
from runner.parallel.precision import of_inputs
from runner.parallel.same_start import broadcast
from runner.parallel.settings import SCHEDULES
from runner.parallel.sharded import ShardedTrainer, materialize_sharded, on_meta, parallelize
from runner.parallel.state import StateDict, full_tensor, merged, restricted
from runner.parallel.step_loss import StepLoss
from runner.parallel.task import Task
from runner.parallel.tied import NOT_ALIKE, Tied, placements_of, untie
from runner.parallel.trainer import Trainer
from runner.parallel.trees import to_device
from runner.versions.features import need
from runner.versions.torch_api import LEARNS_SHAPES_BY_A_CALL, NO_OUTPUTS

# How the cost of layers is measured: on so many samples, at least so often, and until so many seconds have passed.
_SAMPLES, _ROUNDS, _MEASURING = 2, 3, 0.2


class _Stage(PipelineStage):
    """Torch's, which also calls the trainer when a micro-batch has gone through it."""

    def __init__(self, *arguments: Any, trainer: Trainer, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._trainer = trainer

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Exchange nothing ahead on CPUs: NCCL alone needs it, and before torch 2.12 gloo fails if two neighbours are on one rank."""
        return [] if self.device.type == "cpu" else super()._get_init_p2p_neighbors_ops()

    def _prepare_forward_infra(self, *arguments: Any, **more: Any) -> Any:
        """Learn the shapes, and keep random numbers and buffers where the base class calls the stage on zeros for this."""
        if not LEARNS_SHAPES_BY_A_CALL:
            return super()._prepare_forward_infra(*arguments, **more)
        before = [buffer.clone() for buffer in self.submod.buffers()]
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            found = super()._prepare_forward_infra(*arguments, **more)
        for buffer, value in zip(self.submod.buffers(), before, strict=True):
            buffer.copy_(value)
        return found

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Scale gradients that are summed: before torch 2.12 a sequence-parallel norm's is not, and the base class cannot divide it."""
        sum_gradients(self.submod.parameters())
        super().scale_grads(grad_scale_factor)

    def forward_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        outputs = super().forward_one_chunk(*arguments, **more)
        self._trainer.on_progress()
        return outputs

    def backward_one_chunk(self, *arguments: Any, **more: Any) -> None:
        super().backward_one_chunk(*arguments, **more)
        self._trainer.on_progress()


class PipelineTrainer(ShardedTrainer):
    """Trains this rank's stages."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        setting: Setting,
        stages: dict[int, nn.Module],
        owners: Sequence[int],
        tied: Sequence[Tied],
    ) -> None:
        """Make the schedule.

        Args:
            model: this rank's stages in one, for the names of parameters.
            stages: this rank's, by number.
            owners: of each stage: the rank in the pipeline that has it.
            tied: the parameters that several stages have, each a copy.
        """
        super().__init__(task, model, setting, stages.values())
        self.pipeline = setting.mesh.get_group("pipeline")
        self._home, self._stages, self._owners = setting.device, stages, owners
        self.copies = {name: first for (_, first), *others in tied for _, name in others}
        self._shared = self._own_of(tied)
        options = setting.options
        kind: Any = get_schedule_class(SCHEDULES[options.pp_schedule].name)
        own = [
            _Stage(part, number, len(owners), setting.device, group=self.pipeline, trainer=self)
            for number, part in stages.items()
        ]
        is_multi = issubclass(kind, PipelineScheduleMulti)
        scheduled = own if is_multi else own[0]
        self._schedule = kind(scheduled, options.micro_batches, loss_fn=self._scaled_loss)

    def backward(self, batch: Any, samples: int | None = None) -> Tensor:
        """All stages get the batch, (inputs, targets); the first uses the inputs, the last the targets."""
        assert samples is None, "stages agree on the shapes of a usual batch"
        inputs, targets = parts_of(batch)
        self._step = StepLoss(self.options.micro_batches, self._batch_size, self._form)
        last = len(self._owners) - 1
        if self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self._home))  # it has its scale on the stages without a loss, too
        with self.loss_context():
            self._schedule.step(
                *([inputs] if 0 in self._stages else []),
                target=targets if last in self._stages else None,
                losses=[] if last in self._stages else None,
                **NO_OUTPUTS,
            )
        found = torch.zeros(2, dtype=torch.float64, device=self._home)
        if last in self._stages:
            loss = self._finish(self._step)
            found.copy_(torch.stack([loss.double(), found.new_tensor(self._factor)]))
        dist.broadcast(found, group=self.pipeline, group_src=self._owners[last])
        self._factor = float(found[1])
        for parameter, having in self._shared:
            self._sum_gradient(parameter, having)
        return found[0]

    def _scaled_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # The schedule divides the gradients by the number of micro-batches, as step losses do.
        loss = self._step.add(self.task.loss_of_outputs(outputs, targets), len(targets)) * self.options.micro_batches
        return loss if self.scaler is None else self.scaler.scale(loss)

    @raised_on_all_ranks()
    def _own_of(self, tied: Sequence[Tied]) -> list[tuple[nn.Parameter, list[int]]]:
        """Return this rank's parameters that other stages have, sharded alike, each with the ranks of the pipeline that have it."""
        here, parameters = dist.get_rank(self.pipeline), dict(self.model.named_parameters())
        own = {
            places[0][1]: parameters[name]
            for places in tied
            for stage, name in places
            if self._owners[stage] == here and parameters[name].requires_grad
        }
        everyone: list[Any] = [None] * dist.get_world_size(self.pipeline)
        placements = {name: placements_of(parameter) for name, parameter in own.items()}
        dist.all_gather_object(everyone, placements, group=self.pipeline)
        for name in {name for ways in everyone for name in ways}:
            if len({ways[name] for ways in everyone if name in ways}) > 1:
                raise UsageError(
                    f"{name} is tied to a weight of another stage of the pipeline, and the two are not sharded alike",
                    fix=NOT_ALIKE,
                )
        return [
            (parameter, [rank for rank, ways in enumerate(everyone) if name in ways]) for name, parameter in own.items()
        ]

    @torch.no_grad()
    def _sum_gradient(self, parameter: nn.Parameter, having: Sequence[int]) -> None:
        """Add up what the stages' copies of a parameter have got, in the same order on all of them."""
        here = dist.get_rank(self.pipeline)
        if parameter.grad is None:  # this stage has not used it
            parameter.grad = torch.zeros_like(parameter)
        gradient: Any = parameter.grad
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):  # an embedding's is not yet sharded
            gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)
        part = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        own = part.to(self._home).contiguous()
        found = {rank: own if rank == here else torch.empty_like(own) for rank in having}
        exchange = [
            dist.P2POp(way, tensor, group=self.pipeline, group_peer=rank)
            for rank in having
            if rank != here
            for way, tensor in ((dist.isend, own), (dist.irecv, found[rank]))
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        part.copy_(torch.stack([found[rank] for rank in having]).sum(0))

    def outputs(self, *inputs: Any, **named: Any) -> Any:
        """Call the stages one by one, with one tensor and what all stages get beside it. All ranks get the outputs."""
        values, *more = inputs
        for number, (owner, after) in enumerate(zip(self._owners, [*self._owners[1:], None], strict=True)):
            if number in self._stages:
                with self.loss_context():
                    values = full_tensor(self._stages[number](values, *more, **named))
            if after != owner:
                values = self._shown(values, owner)
        self._order.compare_pending()
        return values

    def _shown(self, values: Tensor, owner: int) -> Tensor:
        """Return a rank's tensor on all ranks of the pipeline."""
        assert self.pipeline is not None
        form: list[Any] = [(values.shape, values.dtype)]
        dist.broadcast_object_list(form, dist.get_global_rank(self.pipeline, owner), self.pipeline, self._home)
        shape, dtype = form[0]
        is_owner = dist.get_rank(self.pipeline) == owner
        found = values if is_owner else torch.empty(shape, dtype=dtype, device=self._home)
        broadcast([found], self._home, self.pipeline, source=owner)
        return found

    def state(self) -> StateDict:
        return merged(super().state(), self.pipeline)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        everyone: list[Any] = [None] * dist.get_world_size(self.pipeline)
        dist.all_gather_object(everyone, super().shapes(), group=self.pipeline)
        return {name: shape for own in everyone for name, shape in own.items()}

    def load(self, state: StateDict) -> None:
        names = {self.copies.get(name, name) for name, _ in self.model.named_parameters()}
        super().load(restricted(state, names))


def pipeline(task: Task, setting: Setting, *, shard: bool) -> Trainer:
    """Cut the model into stages, parallelize this rank's, and put them under the schedule.

    Raises:
        UsageError: the model cannot be cut into so many stages.
    """
    options = setting.options
    model = on_meta(task, setting)
    pieces = segments(model, task.plan.cuts(model))
    owners = options.stage_owners
    cuts = balanced(_costs(task, model, pieces, setting), len(owners))
    here = setting.mesh.get_local_rank("pipeline")
    names = [name for piece in pieces for name in piece]
    of_stages = [{name for piece in pieces[cut.start : cut.stop] for name in piece} for cut in cuts]
    parts = [submodel(model, names, own) for own in of_stages]
    tied = untie(parts)
    _check_apart(tied, owners)
    if not any(one.requires_grad for one in parts[0].parameters()):
        need("idle stage", device=setting.device.type)
    stages = {number: part for number, part in enumerate(parts) if owners[number] == here}
    whole = submodel(model, names, set().union(*(of_stages[number] for number in stages)))
    for number, stage in stages.items():
        parallelize(stage, task, setting, shard=shard, stage=number, is_last=number == len(owners) - 1)
        materialize_sharded(stage, task, setting)
    trainer = PipelineTrainer(task, whole, setting, stages, owners, tied)
    trainer.dtype = of_inputs(model)  # also where a stage has another
    return trainer


def _costs(task: Task, model: nn.Module, pieces: Sequence[Sequence[str]], setting: Setting) -> list[float]:
    """Return the cost of each piece: seconds, or operations if the model is on ``meta``. Measured on rank 0. Collective.

    Raises:
        UsageError: the pieces, one after the other, are not the model.
    """
    costs = torch.full([len(pieces)], math.nan, dtype=torch.float64, device=setting.device)
    if dist.get_rank() == 0:
        device = next(model.parameters()).device
        example = task.first_batch(_SAMPLES) if setting.example is None else setting.example
        values, _ = parts_of(to_device(example, device, of_inputs(model)))
        with evaluation_mode([model]):
            with torch.no_grad():
                outputs = model(values)
            names = [name for piece in pieces for name in piece]
            parts = [submodel(model, names, piece) for piece in pieces]
            measured, made = _measured(parts, values)
        if made is not None and _is_same(made, outputs):
            costs.copy_(torch.tensor(measured, dtype=costs.dtype))
        model.zero_grad()
    dist.broadcast(costs, src=0)
    if costs.isnan().any():
        with raised_on_all_ranks():
            raise UsageError(
                "this workload cannot be trained with --pp: the parts that Plan.pipeline cuts the model into, called one after the "
                "other, do not give its outputs",
                fix="make what forward() does between them a module, such as nn.Flatten",
            )
    return costs.tolist()


def _measured(parts: Sequence[nn.Module], values: Tensor) -> tuple[list[float], Tensor | None]:
    """Return the cost of each part, and the last part's outputs, if each part could take the outputs of the one before.

    Seconds are the least of several rounds over all parts: what else the machine does for a moment then meets each part once.
    """
    is_timed = values.device.type != "meta"
    measure, costs = _seconds if is_timed else _operations, [math.inf] * len(parts)
    start, rounds = time.perf_counter(), _ROUNDS if is_timed else 1
    try:
        while rounds > 0 or (is_timed and time.perf_counter() - start < _MEASURING):
            outputs, rounds = values, rounds - 1
            for number, part in enumerate(parts):
                cost, outputs = measure(part, outputs)
                costs[number] = min(costs[number], cost)
    except (RuntimeError, ValueError, IndexError):  # what torch raises for shapes that do not fit
        return costs, None
    return costs, outputs


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and (one.device.type == "meta" or torch.allclose(one, other, rtol=1e-3, atol=1e-5))


def _operations(part: nn.Module, values: Tensor) -> tuple[float, Tensor]:
    with FlopCounterMode(display=False) as counter:
        outputs = part(values)
    return counter.get_total_flops(), outputs


def _seconds(part: nn.Module, values: Tensor) -> tuple[float, Tensor]:
    """Return the seconds of a forward and a backward pass."""
    inputs = values.detach().requires_grad_(values.is_floating_point())
    start = time.perf_counter()
    outputs = part(inputs)
    if outputs.requires_grad:
        torch.autograd.backward((torch.view_as_real(outputs) if outputs.is_complex() else outputs).sum())
    synchronize(values.device)
    return time.perf_counter() - start, outputs.detach()


@raised_on_all_ranks()
def _check_apart(tied: Sequence[Tied], owners: Sequence[int]) -> None:
    """Refuse stages of one rank that share a parameter: its copies would be two of the same name."""
    for places in tied:
        (stage, name), (other, its), *_ = places
        if len({owners[number] for number, _ in places}) < len(places):
            raise UsageError(
                f"{its} is tied to {name}, and this schedule has their stages ({stage} and {other}) on one rank",
                fix="take a --pp-schedule that has the first and the last stage on two",
            )
