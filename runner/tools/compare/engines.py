"""The ways to train that are compared: each has a copy of the model, and does steps on the batches it is given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from runner.comm.horovod import in_turn, start_horovod
from runner.errors import UsageError
from runner.parallel import Setting, load_strategy
from runner.parallel.options import ParallelOptions
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer
from runner.training.options import TrainingOptions
from runner.training.run import Run

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
    task = _copied(task)
    device, dtype = run.device, getattr(torch, options.dtype)
    if name == "alone":
        model = task.build(device, dtype)
        trainer = Trainer(task, model, task.optimizer(model.parameters()), options.parallel)
        return Engine(model=model, step=trainer.step)
    if name == "bare":
        return _bare(task.build(device, dtype), backend, task, options)
    if name == "horovod":
        return _horovod(run, task, options)
    group = _group(backend)
    mesh = DeviceMesh.from_group(group, run.device.type, mesh_dim_names=("data",))
    trainer = load_strategy(name)(task, Setting(device=device, dtype=dtype, mesh=mesh, options=options.parallel))
    return Engine(model=trainer.model, step=trainer.step, exchange=_exchange(trainer.model, group, options))


def _copied(task: Task) -> Task:
    """The task with a model of its own."""
    if not isinstance(task.model, nn.Module):
        return task
    model = copy.deepcopy(task.model)
    if getattr(task.model, "_compiled_call_impl", None) is not None:  # which a copy has lost
        model.compile()
    return replace(task, model=model)


def _group(backend: str) -> dist.ProcessGroup:
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return group


def _bare(model: nn.Module, backend: str, task: Task, options: TrainingOptions) -> Engine:
    """As the tutorials write it."""
    if options.parallel != ParallelOptions(strategy=options.parallel.strategy):
        raise UsageError(
            "--engines bare knows no --micro-batches, --compression and --clip-norm; leave them out", told_by_all=True
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


def _horovod(run: Run, task: Task, options: TrainingOptions) -> Engine:
    setting = Setting(device=run.device, dtype=getattr(torch, options.dtype), mesh=run.mesh, options=options.parallel)
    trainer = load_strategy("horovod")(task, setting)
    hvd, buckets = start_horovod(run.size, run.device.type), _buckets(trainer.model, options)

    def exchange() -> None:
        handles = [hvd.allreduce_async_(bucket, op=hvd.Sum, name=f"bucket {n}") for n, bucket in enumerate(buckets())]
        for handle in handles:
            hvd.synchronize(handle)

    return Engine(model=trainer.model, step=trainer.step, exchange=exchange, turn=lambda: in_turn(hvd))


def _buckets(model: nn.Module, options: TrainingOptions) -> Callable[[], tuple[Tensor, ...]]:
    """Zeros, as many bytes as the gradients are on the wire, in buckets of DDP's size; made at the first call."""

    @functools.cache
    def buckets() -> tuple[Tensor, ...]:
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        first = next(model.parameters())
        dtype = torch.float16 if options.parallel.compression == "fp16" else first.dtype
        gradients = torch.zeros(count, dtype=dtype, device=first.device)
        return torch.split(gradients, _BUCKET // gradients.element_size())

    return buckets
