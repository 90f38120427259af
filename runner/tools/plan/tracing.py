"""Traced memory of a forward and a backward pass, with tensors that have shapes but no memory.

The model is made on ``meta``, given fake tensors (torch's FakeTensorMode) and sharded by tensor parallelism as in a run; then
a micro-batch goes through its pieces one by one: those that a pipeline may cut. Memory is counted by storages, so that views
and tensors that several operations save count once, and what activation checkpointing drops does not count.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from runner.base.errors import UsageError
from runner.parallel import precision
from runner.parallel.batch_forms import parts_of
from runner.parallel.layers import prepare
from runner.parallel.pipeline.stages import segments, submodel
from runner.parallel.settings import ParallelSettings
from runner.parallel.sharded import loss_context, shard_layers
from runner.parallel.support import check_steps, described, kinds_of, results
from runner.parallel.task import Task
from runner.parallel.trees import map_tensors, tensors_in, to_device
from runner.tools.plan.as_on_gpu import as_on_gpu
from runner.training.data.source import source_of
from runner.versions.torch_private import FakeTensorMode, TorchDispatchMode, identity_of, tree_leaves

_COST_SAMPLES = 2  # with which a run measures where to cut (parallel/pipeline/pipeline.py)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Parameter:
    """A parameter of one rank: the shape of its shard under tensor parallelism. Tied ones have one ``identity``."""

    name: str
    shape: tuple[int, ...]
    item: int  # bytes per element
    is_trained: bool
    identity: int
    unit: int  # of FSDP: the number of the module that is gathered at once; 0 is what is in none

    @property
    def bytes(self) -> int:
        return self.item * self.count

    @property
    def count(self) -> int:
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True)
class Pass:
    """The bytes that one micro-batch takes in one piece of the model, on one rank.

    Attributes:
        kept: what the backward pass needs, with the outputs and without parameters.
        temporary: the most that either pass uses besides; with checkpointing a unit's activations, too.
    """

    kept: int
    temporary: int


@dataclass(frozen=True)
class Traced:
    """A model in the pieces that a pipeline may cut, in the order of calls."""

    parameters: list[list[Parameter]]
    passes: list[Pass]


@dataclass(frozen=True)
class ShardedModel:
    """A rank's shard of a model under tensor parallelism, with the fake tensors of a mode."""

    mode: FakeTensorMode
    model: nn.Module
    units: list[nn.Module]
    parameters: list[list[Parameter]]


class Tracer:
    """Follows a task's model, once for each way that matters; in one process group, to which sharded models belong."""

    def __init__(self, task: Task, dtype: torch.dtype | None) -> None:
        """Make the model on ``meta``.

        Raises:
            UsageError: a parameter belongs to a module that is cut.
        """
        self.task = task
        self.model = _copied(task.on_meta(dtype), torch.device("meta"))
        self._dtype = precision.of_inputs(self.model)
        own = self.model.named_parameters(remove_duplicate=False)
        self._items = {name: one.element_size() for name, one in own}  # bytes, also where a copy is cast
        self.pieces = segments(self.model, task.plan.cuts(self.model))
        self._names = [name for piece in self.pieces for name in piece]
        self._models: dict[tuple[Any, ...], ShardedModel] = {}
        self._traced: dict[tuple[Any, ...], Traced] = {}
        self._read: dict[int, Any] = {}

    @functools.cached_property
    def optimizer_problem(self) -> UsageError | None:
        """Why a run refuses the optimizer with sharded parameters, in every layout; None if it does not."""
        kinds = [replace(kind, is_sharded=kind.dimensions > 0) for kind in kinds_of(self.model.parameters())]
        try:
            check_steps(self.task.optimizer, kinds, DeviceMesh("cpu", [0, 1]), compares=False)
        except UsageError as error:
            return error
        return None

    @functools.cached_property
    def costs(self) -> list[float]:
        """The operations of each piece, by which a run balances the stages of a model that a factory makes.

        If the model cannot be followed: the parameters of each piece.
        """
        model = _copied(self.model, torch.device("meta"))  # it may keep what it computes
        costs: list[float] = []
        try:
            inputs, _ = self._batch(_COST_SAMPLES, self._dtype)
            values = inputs.to("meta")
            for piece in self.pieces:
                with FlopCounterMode(display=False) as counter:
                    values = submodel(model, self._names, piece)(values)
                costs.append(float(counter.get_total_flops()))
        except Exception:  # of the model: what it does may depend on data
            parts = [submodel(model, self._names, piece) for piece in self.pieces]
            return [float(sum(one.numel() for one in part.parameters())) for part in parts]
        return costs

    def trace(self, options: ParallelSettings, samples: int, *, casts_parameters: bool) -> Traced:
        """Follow a micro-batch of so many samples through the model as one rank of a tensor-parallel group has it.

        Args:
            casts_parameters: how a smaller precision is had: by fully_shard, or by autocast.
        """
        casts = casts_parameters and options.precision != "fp32"
        kinds = options.sequence_parallel, options.loss_parallel, options.activation_checkpointing, options.precision
        key = (options.tp, *kinds, samples, casts)
        if key not in self._traced:
            self._traced[key] = self._trace(options, samples, casts=casts)
        return self._traced[key]

    def _trace(self, options: ParallelSettings, samples: int, *, casts: bool) -> Traced:
        sharded = self.sharded(options, casts=casts)
        own = [vars(unit).get("forward") for unit in sharded.units]  # prepare() gives each one another
        prepare(
            sharded.model, sharded.units, ParallelSettings(activation_checkpointing=options.activation_checkpointing)
        )
        try:
            self._first(samples)  # outside of the mode: a data set may compute with what its tensors hold
            with sharded.mode:
                return Traced(sharded.parameters, self._passes(sharded.model, options, samples, casts=casts))
        finally:
            for unit, forward in zip(sharded.units, own, strict=True):
                vars(unit).pop("forward", None)
                if forward is not None:
                    unit.forward = forward

    def sharded(self, options: ParallelSettings, *, casts: bool) -> ShardedModel:
        """Return the model as one rank of a tensor-parallel group has it."""
        key = (options.tp, options.sequence_parallel, options.loss_parallel, options.precision if casts else "")
        if key not in self._models:
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            model = _copied(self.model, torch.device("cpu"), _DTYPES[options.precision] if casts else None, mode)
            units = self.task.plan.units(model)
            if options.tp > 1:
                mesh = DeviceMesh("cpu", list(range(options.tp)), mesh_dim_names=("tensor",))
                styles = self.task.plan.styles(model, sequence=options.sequence_parallel)
                with mode:
                    shard_layers(model, styles, mesh)
            trained: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
            for parameter in trained:  # gradients are no activations
                parameter.register_post_accumulate_grad_hook(_drop_gradient)
            self._models[key] = ShardedModel(mode, model, units, self._parameters(model, units))
        return self._models[key]

    def _parameters(self, model: nn.Module, units: Sequence[nn.Module]) -> list[list[Parameter]]:
        unit_of = {id(parameter): number for number, unit in enumerate(units, 1) for parameter in unit.parameters()}

        def described_as(name: str, one: nn.Parameter) -> Parameter:
            shape = tuple(_local(one).shape)
            return Parameter(name, shape, self._items[name], one.requires_grad, id(one), unit_of.get(id(one), 0))

        parts = [submodel(model, self._names, piece) for piece in self.pieces]
        return [[described_as(*named) for named in part.named_parameters()] for part in parts]

    def _passes(self, model: nn.Module, options: ParallelSettings, samples: int, *, casts: bool) -> list[Pass]:
        context = functools.partial(_as_in_a_run, options, casts=casts)
        cast = _DTYPES[options.precision] if casts else None
        ledger = _Ledger([_local(t) for t in [*model.parameters(), *model.buffers()]])
        found: list[Pass] = []
        known: dict[Any, tuple[Pass, Tensor]] = {}
        follow = functools.partial(_follow, ledger, context, options.tp)
        with ledger:
            batch = self._batch(samples, cast or self._dtype)
            start = ledger.now - sum(t.untyped_storage().nbytes() for t in tensors_in(batch))
            if self.task.batch_loss is not None:
                loss = functools.partial(self._batch_loss, model, batch, casts=casts)
                one, _ = follow(loss, start, next(tensors_in(batch)), is_first=True)
                return [one, *[Pass(0, 0)] * (len(self.pieces) - 1)]  # no pipeline cuts it
            values, targets = batch
            for number, piece in enumerate(self.pieces):
                is_last = number == len(self.pieces) - 1
                part = submodel(model, self._names, piece)
                key = _signature(model, piece, part, values) if number and not is_last else number
                if key not in known:
                    compute = functools.partial(self._with_loss, part, targets, casts=casts) if is_last else part
                    known[key] = follow(compute, start, values, is_first=not number)
                one, values = known[key]
                found.append(one)
                start = ledger.now
        return found

    def _with_loss(self, part: nn.Module, targets: Tensor, values: Tensor, *, casts: bool) -> Tensor:
        """Return the mean loss of the outputs of the last piece."""
        outputs = part(values)
        return self.task.loss_of_outputs(outputs.float() if casts else outputs, targets).mean

    def _batch_loss(self, model: nn.Module, batch: Any, _: Tensor, *, casts: bool) -> Tensor:
        """Return the mean loss of a batch of any form."""

        def call(*inputs: Any, **named: Any) -> Any:
            outputs = model(*inputs, **named)
            return to_device(outputs, torch.device("cpu"), torch.float32) if casts else outputs

        return self.task.loss_of(call, batch).mean

    def _first(self, samples: int) -> Any:
        """Return the first batch of the data: one sample of pairs, which all have one shape, else up to ``samples``."""
        number = 1 if self.task.batch_loss is None else min(samples, source_of(self.task).length or samples)
        if number not in self._read:
            self._read[number] = self.task.first_batch(number)
        return self._read[number]

    def _batch(self, samples: int, dtype: torch.dtype | None) -> Any:
        """Return a batch of zeros in the form of the data."""
        first = self._first(samples)
        if self.task.batch_loss is None:
            made: Any = tuple(torch.zeros((samples, *one.shape[1:]), dtype=one.dtype) for one in parts_of(first))
        else:
            made = map_tensors(lambda one: torch.zeros(one.shape, dtype=one.dtype), first)
        return to_device(made, torch.device("cpu"), dtype)


def _follow(
    ledger: _Ledger,
    context: Callable[[], AbstractContextManager[None]],
    tp: int,
    compute: Callable[[Tensor], Tensor],
    start: int,
    values: Tensor,
    *,
    is_first: bool,
) -> tuple[Pass, Tensor]:
    """Return a piece's pass and its outputs. ``start``: bytes in use that are not this piece's."""
    if tp > 1:  # DTensor tries each new operation on tensors of the whole's shape first
        _follow(ledger, context, 1, compute, start, values, is_first=is_first)
    received = values.detach().requires_grad_(values.is_floating_point() and not is_first)
    ledger.peak = ledger.now
    with context():
        outputs = compute(received)
        kept = ledger.now - start
    if outputs.requires_grad:
        with context():
            torch.autograd.backward(outputs, torch.ones_like(outputs))
    return Pass(kept, ledger.peak - start - kept), outputs.detach()


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


@contextmanager
def _as_in_a_run(options: ParallelSettings, *, casts: bool) -> Iterator[None]:
    with as_on_gpu(), loss_context(options), precision.autocast("fp32" if casts else options.precision, "cpu"):
        yield


def _copied(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype | None = None,
    mode: AbstractContextManager[Any] | None = None,
) -> nn.Module:
    """Return the model with new tensors of the same shapes, made under a mode. Tied tensors stay tied; no data is copied.

    Raises:
        UsageError: something that the model holds cannot be copied.
    """

    def empty(tensor: Tensor) -> Tensor:
        own = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=own, device=device)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

    with mode or nullcontext():
        memo: dict[int, Any] = {id(one): empty(one) for one in [*model.parameters(), *model.buffers(), *results(model)]}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise UsageError(f"the model cannot be copied ({described(error)})") from error


def _signature(model: nn.Module, piece: Sequence[str], part: nn.Module, values: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for pieces that do the same, such as a transformer's layers: the tracer follows one of them."""
    shapes = tuple((tuple(_local(one).shape), one.requires_grad) for one in part.parameters())
    return tuple(repr(model.get_submodule(name)) for name in piece), shapes, values.shape, values.dtype


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Adds up the memory that is in use, by storages.

    Attributes:
        now: the bytes of all storages that operations have made and that still exist.
        peak: the largest value of ``now`` since the caller last set ``peak``.
    """

    def __init__(self, known: Sequence[Tensor]) -> None:
        """Begin at zero. ``known``: tensors that do not count."""
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.now = self.peak = 0
        self._storages: dict[int, Any] = {identity_of(t.untyped_storage()): t for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the local tensors
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, number = identity_of(storage), storage.nbytes()
        if key in self._storages:
            return

        def dropped(_: Any) -> None:
            del self._storages[key]
            self.now -= number

        self._storages[key] = weakref.ref(storage, dropped)
        self.now += number
        self.peak = max(self.peak, self.now)
