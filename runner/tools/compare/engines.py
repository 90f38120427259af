"""The engines that are compared. Each trains its own copy of the model on the batches that it is given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from runner.comm.backend import Buffers, Connection, Finish
from runner.comm.table import backends
from runner.errors import UsageError, raised_on_all_ranks
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
        step: trains on a batch; returns the rank's loss, detached.
        exchange: averages as many bytes as the gradients have, and does nothing else.
        turn: context of each of its turns.
    """

    model: nn.Module
    step: Callable[[Tensor, Tensor], Tensor]
    exchange: Callable[[], object] | None = None
    turn: Callable[[], AbstractContextManager[None]] = nullcontext


def build(name: str, backend: str, run: Run, task: Task, options: TrainingOptions) -> Engine:
    """An engine: ``ddp`` (the runner's), ``bare`` (DDP by hand), a library's, or ``alone`` (nothing is exchanged).

    Args:
        backend: for ``ddp`` and ``bare``.
    """
    task = _copied(task)
    device, dtype = run.device, getattr(torch, options.dtype)
    if name == "alone":
        model = task.build(device, dtype)
        trainer = Trainer(task, model, task.optimizer(model.parameters()), options.parallel)
        return Engine(model=model, step=trainer.step)
    connection = backends()[backend or name].start(run.job)
    if name == "bare":
        model = task.build(device, dtype)
        step = _bare(model, connection, task, options)
    else:
        setting = Setting(device=device, dtype=dtype, mesh=_mesh(run, connection), options=options.parallel)
        trainer = load_strategy(name)(task, setting)
        model, step = trainer.model, trainer.step
    exchange = _exchange(model, run, connection, options)
    return Engine(model=model, step=step, exchange=exchange, turn=connection.turn)


def _copied(task: Task) -> Task:
    """The task with a model of its own."""
    if not isinstance(task.model, nn.Module):
        return task
    model = copy.deepcopy(task.model)
    if getattr(task.model, "_compiled_call_impl", None) is not None:  # deepcopy drops this
        model.compile()
    return replace(task, model=model)


def _mesh(run: Run, connection: Connection) -> DeviceMesh:
    if connection.group is None:
        return run.mesh
    return DeviceMesh.from_group(connection.group, run.device.type, mesh_dim_names=("data",))


@raised_on_all_ranks()
def _bare(
    model: nn.Module, connection: Connection, task: Task, options: TrainingOptions
) -> Callable[[Tensor, Tensor], Tensor]:
    """A step of DDP as tutorials write it."""
    if options.parallel != ParallelOptions(strategy=options.parallel.strategy):
        raise UsageError(
            "--engines bare knows no --micro-batches, --compression and --clip-norm; leave them out",
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
    """Zeros of as many bytes as the gradients take on the wire, in buckets of DDP's size."""
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    first = next(model.parameters())
    dtype = torch.float16 if options.parallel.comm_hook == "fp16" else first.dtype
    gradients = torch.zeros(count, dtype=dtype, device=first.device)
    return torch.split(gradients, _BUCKET // gradients.element_size())
