"""The ways to train that are compared: each has a copy of the model, and does steps on the batches it is given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from runner.comm.horovod import in_turn, start_horovod
from runner.errors import UsageError
from runner.parallel import GradientOptions, load_strategy
from runner.training.options import TrainingOptions
from runner.training.run import Run
from runner.training.task import Task, train_step

_BUCKET = 25 << 20  # bytes: DDP's default (torch docs, DistributedDataParallel, bucket_cap_mb)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A model in training.

    Attributes:
        step: of a batch; returns the rank's loss, detached.
        exchange: average as many bytes as there are gradients, and do nothing else.
        turn: to be entered for each of its turns.
    """

    model: nn.Module
    step: Callable[[Tensor, Tensor], Tensor]
    exchange: Callable[[], object] | None = None
    turn: Callable[[], AbstractContextManager[None]] = nullcontext


def build(name: str, backend: str, run: Run, task: Task, options: TrainingOptions) -> Engine:
    """An engine: ``ddp`` (the runner's), ``bare`` (DDP by hand), ``horovod``, or ``alone`` (nothing is exchanged)."""
    model = copy.deepcopy(task.model).to(run.device, getattr(torch, options.dtype))
    if getattr(task.model, "_compiled_call_impl", None) is not None:  # which a copy has lost
        model.compile()
    if name == "alone":
        optimizer, parts = task.optimizer(model.parameters()), options.gradients.micro_batches
        return Engine(model=model, step=lambda x, y: train_step(model, optimizer, task, x, y, parts))
    if name == "bare":
        return _bare(model, backend, task, options)
    if name == "horovod":
        return _horovod(model, run, task, options)
    group = _group(backend)
    mesh = DeviceMesh.from_group(group, run.device.type, mesh_dim_names=("data",))
    return Engine(model=model, step=_step(name, model, mesh, task, options), exchange=_exchange(model, group, options))


def _step(
    strategy: str, model: nn.Module, mesh: DeviceMesh, task: Task, options: TrainingOptions
) -> Callable[[Tensor, Tensor], Tensor]:
    wrapped, optimizer = load_strategy(strategy)(model, task.optimizer, mesh, options.gradients)
    parts = options.gradients.micro_batches
    return lambda inputs, targets: train_step(wrapped, optimizer, task, inputs, targets, parts)


def _group(backend: str) -> dist.ProcessGroup:
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return group


def _bare(model: nn.Module, backend: str, task: Task, options: TrainingOptions) -> Engine:
    """As the tutorials write it."""
    if options.gradients != GradientOptions():
        raise UsageError(
            "--engines bare knows no --micro-batches and no --compression; leave it or them out", told_by_all=True
        )
    group = _group(backend)
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = task.optimizer(wrapped.parameters())

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = task.loss(wrapped(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return Engine(model=model, step=step, exchange=_exchange(model, group, options))


def _exchange(model: nn.Module, group: dist.ProcessGroup, options: TrainingOptions) -> Callable[[], object]:
    buckets = _buckets(model, options)

    def exchange() -> None:
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets()]:
            work.wait()

    return exchange


def _horovod(model: nn.Module, run: Run, task: Task, options: TrainingOptions) -> Engine:
    hvd, buckets = start_horovod(run.size, run.device.type), _buckets(model, options)

    def exchange() -> None:
        handles = [hvd.allreduce_async_(bucket, op=hvd.Sum, name=f"bucket {n}") for n, bucket in enumerate(buckets())]
        for handle in handles:
            hvd.synchronize(handle)

    step = _step("horovod", model, run.mesh, task, options)
    return Engine(model=model, step=step, exchange=exchange, turn=lambda: in_turn(hvd))


def _buckets(model: nn.Module, options: TrainingOptions) -> Callable[[], tuple[Tensor, ...]]:
    """Zeros, as many bytes as the gradients are on the wire, in buckets of DDP's size; made at the first call."""

    @functools.cache
    def buckets() -> tuple[Tensor, ...]:
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        first = next(model.parameters())
        dtype = torch.float16 if options.gradients.compression == "fp16" else first.dtype
        gradients = torch.zeros(count, dtype=dtype, device=first.device)
        return torch.split(gradients, _BUCKET // gradients.element_size())

    return buckets
