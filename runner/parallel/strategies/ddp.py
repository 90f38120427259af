"""Data parallel by DDP: every rank has the full model; gradients are averaged during the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from runner.base.errors import RunnerError
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


def ddp(task: Task, setting: Setting) -> Trainer:
    """Wrap the model in DistributedDataParallel over the mesh's ``data`` dimension.

    If tensor or pipeline parallelism shards the model, fully_shard does the same with shards of the full size: DDP takes no
    DTensors, and under a zero-bubble schedule it averages nothing, without a word (torch 2.14).
    """
    if degree(setting.mesh, "tensor") * degree(setting.mesh, "pipeline") > 1:
        from runner.parallel.compose import compose  # imports DTensor, which takes a second

        return compose(task, setting, shard=False)
    model = task.build(setting.device, setting.dtype)
    prepare(model, task.plan.units(model), setting.options)
    wrapped, finished = wrap(model, task, setting)
    optimizer = task.make_optimizer(model.parameters())
    return Trainer(task, model, optimizer, setting.options, wrapped=wrapped, no_sync=wrapped.no_sync, finished=finished)


def wrap(model: nn.Module, task: Task, setting: Setting) -> tuple[DistributedDataParallel, Callable[[], None]]:
    """DDP around a model, which compresses the gradients as the options say; and a check that it has exchanged all of them."""
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
    return wrapped, functools.partial(_check_finished, wrapped, model)


def _check_finished(wrapped: DistributedDataParallel, model: nn.Module) -> None:
    """Raise if this rank has computed no gradient of a parameter: then DDP has not exchanged it, nor those that go with it.

    Raises:
        RunnerError: that is so. Torch would raise in the next step, with numbers in place of names.
    """
    try:
        check_finished(wrapped)
    except RuntimeError:
        unused = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
        more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        raise RunnerError(
            f"no gradient of {', '.join(unused[:_NAMED]) or 'some parameters'}{more} in this step, and the other ranks wait for it",
            fix="let the loss depend on every parameter on every rank, or say Task(find_unused_parameters=True)",
        ) from None


def _hook(name: str, group: ProcessGroup) -> tuple[Any, Callable[..., Any]]:
    """The state and the function of one of torch's communication hooks."""
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        # The first steps are exchanged in full, as their gradients change most; ranks 1 to 4 are usual (torch docs).
        return PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=10), powerSGD_hook
    return group, {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}[name]
