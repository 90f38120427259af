"""A model that is sharded in several ways at once: tensor parallel layers, pipeline stages, shards and replicas.

The order is that of torchtitan: tensor parallelism first, as it replaces parameters; then activation checkpointing, which wraps
layers; then torch.compile, which compiles what it finds; then fully_shard, whose hooks stay outside of what is compiled.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from runner.backends.gpu import is_gpu
from runner.base.errors import raised_on_all_ranks
from runner.parallel import Setting, precision
from runner.parallel.call_order import CallOrder
from runner.parallel.layers import prepare
from runner.parallel.materialize import materialize
from runner.parallel.mesh import degree
from runner.parallel.settings import ParallelSettings
from runner.parallel.state import StateDict
from runner.parallel.streams import RandomStreams, draws
from runner.parallel.support import (
    check_divisible,
    check_even,
    check_steps,
    check_unit_dtypes,
    copies_of,
    kinds_of,
    supported_by,
)
from runner.parallel.task import Task
from runner.parallel.tied import shared_parameters, tie_sharded
from runner.parallel.trainer import Trainer
from runner.versions.features import need
from runner.versions.torch_api import ALL_HAVE_IT
from runner.versions.torch_private import NORM_PLACEMENT, REDISTRIBUTION, AsyncCollectiveTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


class ShardedTrainer(Trainer):
    """Trains a model of which each rank has a shard."""

    is_sharded = True

    def __init__(self, task: Task, model: nn.Module, setting: Setting, parts: Collection[nn.Module]) -> None:
        """Make the optimizer of this rank's parameters.

        Args:
            model: has all of this rank's parameters.
            parts: what is called: the model, or this rank's stages of it.
        """
        optimizer = task.make_optimizer(model.parameters())
        own = [*model.parameters()]
        mesh = next((one.device_mesh for one in own if isinstance(one, DTensor)), None)
        if mesh is not None:
            with _raised_by_stage(setting):
                kinds = kinds_of(own)
                check_steps(copies_of(optimizer, kinds), kinds, mesh)
        super().__init__(task, model, optimizer, setting.options)
        self._parts, names = parts, setting.mesh.mesh_dim_names or ()
        self._has_shards = "replicate" not in names or degree(setting.mesh, "shard") > 1
        self.replicas, self.sends_from = setting.mesh.get_group("data"), setting.device
        self._order = CallOrder(parts, self.replicas, setting.device)
        # fully_shard takes no parameters without dimensions: each rank has them in full.
        self._numbers = [one for one in model.parameters() if not one.dim()]

    @property
    def roots(self) -> list[nn.Module]:
        return [*{self.model: None, **dict.fromkeys(self._parts)}]

    def finish_gradients(self) -> None:
        self._order.check(self.model.named_parameters())
        if self._numbers and dist.get_world_size(self.replicas) > 1:
            self._average_numbers()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Delay the exchange of gradients, but not of shards', as full ones would take more memory.

        (To sum shards at once and replicas at last, torch has ``set_requires_all_reduce``. It adds wrong gradients up if a unit
        does not compute the same parameters' in each micro-batch.)
        """
        replicas = [part for part in self._parts if isinstance(part, FSDPModule) and not self._has_shards]
        for part in replicas:
            part.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for part in replicas:
                part.set_requires_gradient_sync(True)

    @torch.no_grad()
    def _average_numbers(self) -> None:
        """Average the gradients of parameters without dimensions. One that no rank has stays without."""
        rows = []
        for one in self._numbers:
            value = torch.zeros_like(one) if one.grad is None else one.grad
            parts = torch.view_as_real(value) if value.is_complex() else torch.stack([value, torch.zeros_like(value)])
            rows.append([*parts.tolist(), one.grad is not None])
        table = torch.tensor(rows, dtype=torch.float64, device=self.sends_from)
        dist.all_reduce(table, group=self.replicas)
        for one, (real, imaginary, having) in zip(self._numbers, table.tolist(), strict=True):
            if having:
                mean = complex(real, imaginary) / dist.get_world_size(self.replicas)
                one.grad = torch.full_like(one, mean if one.is_complex() else mean.real)

    def state(self) -> StateDict:
        """Return the state, but not of a model that has got wrong gradients."""
        self._order.compare_pending()
        return super().state()

    def outputs(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().outputs(*inputs, **named)
        self._order.compare_pending()
        return outputs

    def outputs_are_over(self) -> None:
        """Reshard what a forward pass has gathered, which else stays so until the backward pass."""
        self._order.compare_pending()  # what was exchanged last, also where nothing was evaluated
        for part in self._parts:
            for unit in part.modules():
                if isinstance(unit, FSDPModule):
                    unit.reshard()

    def computing(self) -> AbstractContextManager[Any]:
        return nullcontext()  # a smaller type is fully_shard's policy

    def loss_context(self) -> AbstractContextManager[Any]:
        return loss_context(self.options)


def loss_context(options: ParallelSettings) -> AbstractContextManager[Any]:
    """The context of forward and backward passes: it computes the loss of outputs that are sharded by classes."""
    if not options.loss_parallel:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    context: AbstractContextManager[Any] = loss_parallel()
    return context


def parallelize(
    model: nn.Module, task: Task, setting: Setting, *, shard: bool, stage: int = 0, is_last: bool = True
) -> None:
    """Parallelize a model, or a stage of one, in place: tensor parallelism, checkpointing, compilation, shards; in this order."""
    options = setting.options
    styles = task.plan.styles(model, sequence=options.sequence_parallel) if options.tp > 1 else {}
    wraps = shard or setting.mesh["data"].size() > 1 or options.precision != "fp32"
    with _raised_by_stage(setting):
        if styles or wraps:
            check_divisible(model)
        if styles:
            with supported_by(f"--tp {options.tp}"):
                shard_layers(model, styles, setting.mesh["tensor"])
        units = task.plan.units(model)
        if options.tp > 1 and options.compile:
            _wait_outside_of(units, model)
        prepare(model, units, options, _streams(model, styles, setting, stage))
        if wraps:
            need("fsdp" if shard else "replicas", device=setting.device.type)
            with supported_by(f"--strategy {options.strategy}"):
                _apply_fsdp(model, units, setting, is_last=is_last)


def _raised_by_stage(setting: Setting) -> AbstractContextManager[None]:
    """The context in which a stage of a pipeline is made ready: the ranks that have it report what is wrong with it."""
    return raised_on_all_ranks(False) if degree(setting.mesh, "pipeline") > 1 else nullcontext()


def on_meta(task: Task, setting: Setting) -> nn.Module:
    """The full model: where it will be, or on ``meta`` if a factory makes it."""
    model = task.on_meta(setting.dtype)
    return model.to(_home(setting)) if isinstance(task.model, nn.Module) else model


def materialize_sharded(model: nn.Module, task: Task, setting: Setting) -> None:
    """Give a sharded model its memory and its weights, if it is on ``meta``."""
    if not isinstance(task.model, nn.Module):
        materialize(model, task.model, _home(setting))
        for buffer in model.buffers():  # fully_shard offloads parameters only
            buffer.data = buffer.to(setting.device)


def _home(setting: Setting) -> torch.device:
    return torch.device("cpu") if setting.options.offload == "cpu" else setting.device


def _streams(
    model: nn.Module, styles: Mapping[str, ParallelStyle], setting: Setting, stage: int
) -> RandomStreams | None:
    """The random numbers of a stage or shard of the model, where it is not to draw what others draw."""
    # Each change of streams would be a break in what torch.compile compiles.
    if not (styles or stage) or (setting.options.compile and not draws(model)):
        return None
    streams = RandomStreams(model, setting.device, stage=stage)
    if styles:
        streams.follow(model, styles, setting.mesh.get_local_rank("tensor"))
    return streams


def shard_layers(model: nn.Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """Tensor parallelism: shard the layers, by name, along a mesh. What is tied stays so, and what is frozen, too.

    Raises:
        UsageError: tied parameters are not sharded alike, or torch is too old for frozen ones.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    shared = shared_parameters(model)
    frozen = [name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad]
    # torch 2.6 says so of a CPU's mesh whenever it makes a DTensor; the runner has random numbers of its own (streams.py).
    warnings.filterwarnings("ignore", "DTensor random operators may not have complete support", UserWarning)
    parallelize_module(model, mesh, {**styles}, **ALL_HAVE_IT)
    for parameter in map(model.get_parameter, frozen):
        if hasattr(parameter, "placements"):
            need("frozen", device=mesh.device_type)
        parameter.requires_grad = False  # torch's new ones are trained: all before 2.11, norms still (2.15)
    tie_sharded(model, shared)


def _wait_outside_of(units: Sequence[nn.Module], model: nn.Module) -> None:
    """Have all layers but those of the units, which are compiled, return what has arrived.

    A tensor-parallel embedding returns what is still being reduced (torch's AsyncCollectiveTensor). A compiled unit takes apart
    such an input, and its gradient reaches the embedding as a plain tensor where DTensor's backward pass needs its own (2.14).
    """
    compiled = {id(module) for unit in units for module in unit.modules()}
    for module in model.modules() if units else ():
        if module is not model and id(module) not in compiled:
            module.register_forward_hook(_arrived)


def _arrived(_: nn.Module, __: Any, output: Any) -> Any:
    return output.clone() if isinstance(output, AsyncCollectiveTensor) else output  # any operation but a view waits


def _apply_fsdp(model: nn.Module, units: Iterable[nn.Module], setting: Setting, *, is_last: bool) -> None:
    """Shard the units one by one, and what is left as one more."""
    options, names = setting.options, setting.mesh.mesh_dim_names or ()
    if options.tp > 1:
        _silence_remarks()
    mesh = setting.mesh["replicate", "shard"] if "replicate" in names else setting.mesh["data"]
    check_even(model, mesh.size(mesh.ndim - 1))
    units = [unit for unit in units if is_called(unit) and not _shares_parameters(unit, model)]
    check_unit_dtypes(model, units)
    arguments: dict[str, Any] = {
        "mesh": mesh,
        # A pipeline stage is called once for each micro-batch, and would gather its parameters each time.
        # Torch's own choice else: all but the root, whose backward pass comes at once.
        "reshard_after_forward": False if options.pp > 1 else None,
        # It takes none without dimensions or elements.
        "ignored_params": {one for one in model.parameters() if not one.dim() or not one.numel()} or None,
        "offload_policy": CPUOffloadPolicy(pin_memory=is_gpu(setting.device))
        if options.offload == "cpu"
        else OffloadPolicy(),
    }
    for one in model.parameters():
        if not hasattr(one, "placements"):
            one.data = one.data.contiguous()  # fully_shard takes no others, such as channels last
    for unit in units:
        policy = precision.policy(options.precision, is_root=False, is_last=False)
        fully_shard(unit, **arguments, mp_policy=policy)
    fully_shard(model, **arguments, mp_policy=precision.policy(options.precision, is_root=True, is_last=is_last))


def _silence_remarks() -> None:
    """Silence what torch says of any tensor-parallel layers under fully_shard, and that their user cannot change (2.14)."""
    # The output of a tensor-parallel layer is a view; changed in place it would lose a hook of fully_shard's. Autograd refuses that.
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(\w+\) returned a view tensor", UserWarning)
    logging.getLogger(REDISTRIBUTION).addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for DTensor's warning about redistributing a norm in several steps: norms are single numbers."""
    return not (str(record.msg).startswith("While redistributing") and NORM_PLACEMENT in record.getMessage())


def is_called(unit: nn.Module) -> bool:
    """Whether a unit can be called, so that its parameters are gathered in time: lists of modules or parameters are not."""
    return type(unit).forward is not nn.Module.forward


def _shares_parameters(unit: nn.Module, model: nn.Module) -> bool:
    """Whether the unit shares a parameter with a module outside it. Such a unit is sharded together with the root."""
    own, inside = set(map(id, unit.parameters())), set(unit.modules())
    outside = (module for module in model.modules() if module not in inside)
    return any(id(parameter) in own for module in outside for parameter in module.parameters(recurse=False))
