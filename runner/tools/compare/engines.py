"""The engines that are compared. Each trains its own copy of the model on the batches that it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from runner.backends.connection import Connection
from runner.backends.process_group import with_host_memory
from runner.backends.registry import backends
from runner.parallel import Setting, make_trainer, precision
from runner.parallel.layers import prepare
from runner.parallel.mesh import device_mesh
from runner.parallel.settings import ParallelSettings
from runner.parallel.support import results
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer
from runner.tools.compare.choices import ALONE, BARE, Choice
from runner.training.run import Run
from runner.training.settings import StepSettings
from runner.versions.torch_private import was_compiled


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A model in training.

    Attributes:
        step: trains on a batch; returns the rank's loss, detached.
        turn: context of each of its turns.
        prepare_evaluation: brings the weights to what an evaluation uses. Collective.
    """

    model: nn.Module
    step: Callable[[Any], Tensor]
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    prepare_evaluation: Callable[[], None] = lambda: None


def build(choice: Choice, run: Run, task: Task, options: StepSettings) -> Engine:
    """Make an engine.

    Args:
        options: as a workload reads them with the engine's flags.

    Raises:
        UsageError: the model, or this machine, does not support it.
    """
    task = _copied(task)
    device, dtype = run.device, precision.named(options.dtype)
    if choice.kind == ALONE:
        model = task.build(device, dtype)
        # So that it differs from the others only in the exchange.
        prepare(model, task.plan.units(model), options)
        trainer = Trainer(task, model, task.make_optimizer(model.parameters()), options)
        trainer.averages = False
        return Engine(model=model, step=trainer.step)
    connection = backends()[choice.backend or choice.kind].start(run.job)
    if choice.kind == BARE:
        model = task.build(device, dtype)
        step = _bare(model, connection, task, options)
        return Engine(model=model, step=step, turn=connection.turn)
    backend = with_host_memory(choice.backend) if options.offload == "cpu" else choice.backend
    mesh = device_mesh(choice.layout, device.type, backend or None)
    trainer = make_trainer(task, Setting(device=device, dtype=dtype, mesh=mesh, options=options))
    return Engine(
        model=trainer.model, step=trainer.step, turn=connection.turn, prepare_evaluation=trainer.share_buffers
    )


def _copied(task: Task) -> Task:
    """The task with a model of its own."""
    if not isinstance(task.model, nn.Module):
        return task
    model = copy.deepcopy(task.model, {id(one): one.detach().clone() for one in results(task.model)})
    if was_compiled(task.model):  # deepcopy drops this
        model.compile()
    return replace(task, model=model)


def _bare(model: nn.Module, connection: Connection, task: Task, options: ParallelSettings) -> Callable[[Any], Tensor]:
    """A step of DDP as tutorials write it; with the options that ``choices.supported`` lets pass."""
    if options.compile:
        model.compile()
    wrapped = DistributedDataParallel(
        model, process_group=connection.group, find_unused_parameters=task.find_unused_parameters
    )
    optimizer = task.make_optimizer(wrapped.parameters())
    device = next(model.parameters()).device.type

    def step(batch: Any) -> Tensor:
        with precision.autocast(options.precision, device):
            loss = task.loss_of(wrapped, batch).mean
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(wrapped.parameters(), options.clip_norm)
        optimizer.step()
        return loss.detach()

    return step
