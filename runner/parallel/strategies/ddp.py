"""Data parallel by DDP: every rank has the full model; gradients are averaged during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from runner.base.errors import RunnerError, UsageError
from runner.parallel import Setting
from runner.parallel.layers import prepare
from runner.parallel.mesh import degree
from runner.parallel.support import supported_by
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer
from runner.versions.features import need
from runner.versions.torch_api import ARE_EQUAL
from runner.versions.torch_private import check_finished

_NAMED = 8  # parameters in a message


class DdpTrainer(Trainer):
    """DDP around the model, which is wrapped anew where other parameters are trained than before, as when layers are unfrozen."""

    def __init__(self, task: Task, model: nn.Module, optimizer: Optimizer, setting: Setting) -> None:
        super().__init__(task, model, optimizer, setting.options)
        self._setting = setting
        self._ddp: DistributedDataParallel | None = None
        self._trained: list[int] = []  # the ids of the parameters that it exchanges
        self._will_exchange = self._has_exchanged = True  # the next backward pass; the last one
        self._wrap()

    @property
    def wrapped(self) -> nn.Module:
        ddp = self._wrap()
        is_trained = any(one.requires_grad for one in self.model.parameters())
        return ddp if is_trained else self.model  # DDP would wait for gradients of what is frozen for a while

    def _wrap(self) -> DistributedDataParallel:
        trained = [id(one) for one in self.model.parameters() if one.requires_grad]
        if self._ddp is None or (trained and trained != self._trained):
            self._ddp = None  # the former takes its hooks away first
            self._ddp, self._trained = wrap(self.model, self.task, self._setting), trained
            if dist.get_world_size(self._ddp.process_group) > 1:
                self._ddp.register_forward_hook(self._note_call)
        return self._ddp

    def _note_call(self, wrapped: nn.Module, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._will_exchange = bool(wrapped.require_backward_grad_sync)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self._wrap().no_sync()

    def backward_from(self, loss: Tensor) -> None:
        """Compute gradients, and name the parameters that got none on this rank, so that DDP has not exchanged them.

        Torch would raise in the next step, with numbers in place of names.
        """
        super().backward_from(loss)
        assert self._ddp is not None
        if dist.get_world_size(self._ddp.process_group) > 1:
            self._has_exchanged, self._will_exchange = self._will_exchange, False
        try:
            check_finished(self._ddp)
        except RuntimeError:
            unused = [name for name, one in self.model.named_parameters() if one.requires_grad and one.grad is None]
            more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
            raise RunnerError(
                f"no gradient of {', '.join(unused[:_NAMED]) or 'some parameters'}{more} in this step, and the other ranks wait for it",
                fix="let the loss depend on every parameter on every rank, or give Task or prepare() find_unused_parameters=True",
            ) from None

    def finish_gradients(self) -> None:
        """Refuse gradients if the last backward pass has exchanged nothing."""
        if not self._has_exchanged:
            raise UsageError(
                "the ranks' gradients are not averaged: the loss of the last backward() was computed past the prepared model, or in accumulate()",
                fix="call the model itself, outside of accumulate(); what another of its methods does, let its forward() do",
            )


def ddp(task: Task, setting: Setting) -> Trainer:
    """Wrap the model in DistributedDataParallel over the mesh's ``data`` dimension.

    If tensor or pipeline parallelism shards the model, fully_shard does the same with shards of the full size: DDP takes no
    DTensors, and under a zero-bubble schedule it averages nothing, without a word (torch 2.14).
    """
    if degree(setting.mesh, "tensor") * degree(setting.mesh, "pipeline") > 1:
        from runner.parallel.strategies.fsdp import fsdp  # imports DTensor, which takes a second

        return fsdp(task, setting, shard=False)
    model = task.build(setting.device, setting.dtype)
    prepare(model, task.plan.units(model), setting.options)
    return DdpTrainer(task, model, task.make_optimizer(model.parameters()), setting)


def wrap(model: nn.Module, task: Task, setting: Setting) -> DistributedDataParallel:
    """DDP around a model, which compresses the gradients as the options say."""
    group = setting.mesh.get_group("data")
    if any(one.is_complex() for one in [*model.parameters(), *model.buffers()]):
        need("complex", device=setting.device.type)
    with supported_by(f"--strategy {setting.options.strategy}"):
        wrapped = DistributedDataParallel(
            model,
            process_group=group,
            gradient_as_bucket_view=True,
            **ARE_EQUAL,
            find_unused_parameters=task.find_unused_parameters,
        )
    if setting.options.comm_hook != "none":
        wrapped.register_comm_hook(*_hook(setting.options.comm_hook, group))
    return wrapped


def _hook(name: str, group: ProcessGroup) -> tuple[Any, Callable[..., Any]]:
    """The state and the function of one of torch's communication hooks."""
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        # The first steps are exchanged in full, as their gradients change most; ranks 1 to 4 are usual (torch docs).
        return PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=10), powerSGD_hook
    return group, {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}[name]
