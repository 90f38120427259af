"""The ways to train that are compared: each has a copy of the model, and does steps on the batches it is given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from runner.comm.backend import Buffers, Connection, Finish
from runner.comm.table import backends
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
    """An engine: ``ddp`` (the runner's), ``bare`` (DDP by hand), a library's, or ``alone`` (nothing is exchanged).

    Args:
        backend: of ``ddp`` and ``bare``.
    """
    model = copy.deepcopy(task.model).to(run.device, getattr(torch, options.dtype))
    if getattr(task.model, "_compiled_call_impl", None) is not None:  # which a copy has lost
        model.compile()
    if name == "alone":
        optimizer, parts = task.optimizer(model.parameters()), options.gradients.micro_batches
        return Engine(model=model, step=lambda x, y: train_step(model, optimizer, task, x, y, parts))
    connection = backends()[backend or name].start(run.job)
    if name == "bare":
        step = _bare(model, connection, task, options)
    else:
        step = _step(name, model, _mesh(run, connection), task, options)
    exchange = _exchange(model, run, connection, options)
    return Engine(model=model, step=step, exchange=exchange, turn=connection.turn)


def _step(
    strategy: str, model: nn.Module, mesh: DeviceMesh, task: Task, options: TrainingOptions
) -> Callable[[Tensor, Tensor], Tensor]:
    wrapped, optimizer = load_strategy(strategy)(model, task.optimizer, mesh, options.gradients)
    parts = options.gradients.micro_batches
    return lambda inputs, targets: train_step(wrapped, optimizer, task, inputs, targets, parts)


def _mesh(run: Run, connection: Connection) -> DeviceMesh:
    if connection.group is None:
        return run.mesh
    return DeviceMesh.from_group(connection.group, run.device.type, mesh_dim_names=("data",))


def _bare(
    model: nn.Module, connection: Connection, task: Task, options: TrainingOptions
) -> Callable[[Tensor, Tensor], Tensor]:
    """As the tutorials write it."""
    if options.gradients != GradientOptions():
        raise UsageError(
            "--engines bare knows no --micro-batches and no --compression; leave it or them out", told_by_all=True
        )
    wrapped = DistributedDataParallel(model, process_group=connection.group)
    optimizer = task.optimizer(wrapped.parameters())

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = task.loss(wrapped(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return step


def _exchange(model: nn.Module, run: Run, connection: Connection, options: TrainingOptions) -> Callable[[], object]:
    @functools.cache
    def starts() -> list[Callable[[], Finish]]:
        found = []
        for number, bucket in enumerate(_buckets(model, options)):
            buffers = Buffers(bucket, bucket, bucket, run.job.rank, run.job.size)
            operation = connection.operation("allreduce", buffers, f"bucket {number}")
            assert operation is not None, "every backend has it"
            assert operation.start is not None
            found.append(operation.start)
        return found

    def exchange() -> None:
        for finish in [start() for start in starts()]:
            finish()

    return exchange


def _buckets(model: nn.Module, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Zeros, as many bytes as the gradients are on the wire, in buckets of DDP's size."""
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    first = next(model.parameters())
    dtype = torch.float16 if options.gradients.compression == "fp16" else first.dtype
    gradients = torch.zeros(count, dtype=dtype, device=first.device)
    return torch.split(gradients, _BUCKET // gradients.element_size())
