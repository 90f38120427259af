"""Refusals, before the first step, of models and optimizers that a strategy does not support."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from runner.base.errors import UsageError, is_echo, raised_on_all_ranks
from runner.parallel.state import full_tensor
from runner.versions.features import need
from runner.versions.torch_api import ALL_HAVE_IT

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SIZES = (4, 3, 5, 2, 6)  # of the dimensions of parameters that an optimizer is tried with
# How many steps, and which share of one is more than rounding: that of Muon, which computes in bfloat16, is up to 0.04.
_STEPS, _FAR = 2, 0.2
TRIED = "runner_tries_it"  # an attribute of an optimizer whose steps train nothing
# Errors by which torch and optimizers say what they cannot do with a model.
_ABOUT_THE_MODEL = (TypeError, ValueError, NotImplementedError, AttributeError, KeyError, AssertionError)
# In a RuntimeError: what has failed is memory, a device, or the exchange with other ranks.
_OF_A_RANK = ("DefaultCPUAllocator", "CUDA error", "NCCL error", "/gloo/")
_OTHERWISE = "take another optimizer, or --strategy ddp or zero1"


@raised_on_all_ranks()
def check_shapes(model: nn.Module) -> None:
    """Refuse a model with a parameter or buffer that has no shape yet."""
    lazy = next((name for name, one in [*model.named_parameters(), *model.named_buffers()] if is_lazy(one)), None)
    if lazy is not None:
        raise UsageError(
            f"{lazy} has no shape yet, as lazy modules get theirs in their first call",
            fix="call the model once on a sample before its training",
        )


@raised_on_all_ranks()
def check_divisible(model: nn.Module) -> None:
    """Refuse a model with sparse gradients, of which ranks cannot have shards."""
    if sparse := sparse_modules(model):
        raise UsageError(
            f"{sparse[0] or 'the model'} gives sparse gradients, which a sharded model cannot exchange",
            fix="leave out sparse=True, or take --strategy ddp or zero1",
        )


def check_even(model: nn.Module, shards: int) -> None:
    """Refuse what an older torch shards wrongly: parts of a tensor-parallel layer, in shards of which some are smaller than others."""
    parameters: list[Any] = [*model.parameters()]
    for one in parameters:
        placements = getattr(one, "placements", ())
        parts = one.device_mesh.size() if placements else 1
        if shards > 1 and any(place.is_shard(0) for place in placements) and one.size(0) % (parts * shards):
            need("uneven", device=one.device_mesh.device_type)


def sparse_modules(model: nn.Module) -> list[str]:
    """The names of the modules that give sparse gradients of their weights."""
    kinds = nn.Embedding, nn.EmbeddingBag
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.sparse]


@contextmanager
def supported_by(what: str) -> Iterator[None]:
    """Report in one line what torch does not support, in a context in which torch wraps or shards a model."""
    with raised_on_all_ranks():
        try:
            yield
        except Exception as error:
            if not is_about_the_model(error):
                raise
            raise UsageError(
                f"{what} does not support this model ({described(error)})", fix="take --strategy ddp"
            ) from error


def is_about_the_model(error: Exception) -> bool:
    """Whether an error says what torch or an optimizer cannot do; else it is one rank's misfortune, and no request is wrong."""
    if type(error) is RuntimeError:  # its subclasses are of devices, memory and exchanges: torch's, and Horovod's
        return not (is_echo(error) or any(sign in str(error) for sign in _OF_A_RANK))
    return isinstance(error, _ABOUT_THE_MODEL)


def described(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def results(model: nn.Module) -> list[Tensor]:
    """Tensors that modules hold from their last call, as the old form of weight normalisation does: deepcopy() refuses them."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return [value for value in held if not value.is_leaf]


@raised_on_all_ranks()
def check_one_dtype(parameters: Iterable[tuple[str, nn.Parameter]], who: str, fix: str) -> None:
    """Refuse parameters of several dtypes, as ZeroRedundancyOptimizer does, and fully_shard those of one unit."""
    kinds = {one.dtype: f"{name} is {str(one.dtype).removeprefix('torch.')}" for name, one in parameters}
    if len(kinds) > 1:
        raise UsageError(f"{who} takes parameters of one dtype, and {' and '.join([*kinds.values()][:2])}", fix=fix)


def check_zero(model: nn.Module) -> None:
    """Refuse what ZeroRedundancyOptimizer does: see ``check_one_dtype``."""
    check_one_dtype(model.named_parameters(), "--strategy zero1", "take --strategy ddp")


def check_unit_dtypes(model: nn.Module, units: Iterable[nn.Module]) -> None:
    """Refuse a model of which fully_shard would gather parameters of several dtypes together: see ``check_one_dtype``."""
    left = {one: name for name, one in model.named_parameters() if one.requires_grad and one.dim() and one.numel()}
    for unit in (*units, model):
        own = [(left.pop(one), one) for one in unit.parameters() if one in left]
        check_one_dtype(own, "a unit of Plan.shard", "name them apart in it, or take --strategy ddp or --dtype float32")


@dataclass(frozen=True, order=True)
class ParameterKind:
    """The properties of a parameter that an optimizer may treat differently: dimensions, dtype, and whether it is sharded."""

    dimensions: int
    is_sharded: bool
    dtype: str


def kinds_of(parameters: Iterable[nn.Parameter]) -> list[ParameterKind]:
    """Return the kinds of the trained parameters. ``is_sharded``: whether the parameters are sharded."""
    return sorted({_kind_of(one) for one in parameters if one.requires_grad})


def _kind_of(one: Tensor) -> ParameterKind:
    return ParameterKind(one.dim(), hasattr(one, "placements"), str(one.dtype).removeprefix("torch."))


def copies_of(optimizer: Optimizer, kinds: Sequence[ParameterKind]) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """A function that copies an optimizer, for other parameters in the place of its own: one of each kind, in this order."""

    def copied(parameters: Iterable[nn.Parameter]) -> Optimizer:
        by_kind, made = dict(zip(kinds, parameters, strict=True)), object.__new__(type(optimizer))
        nothing = nn.Parameter(torch.empty(0))
        own = [one for group in optimizer.param_groups for one in group["params"]]
        memo: dict[int, Any] = {id(one): by_kind.get(_kind_of(one), nothing) for one in own}
        # A scheduler's step() in the place of the class's calls that of the optimizer itself.
        attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
        vars(made).update(copy.deepcopy(attributes, memo | {id(optimizer): made}))
        for group in made.param_groups:
            group["params"] = [*{id(one): one for one in group["params"] if one is not nothing}.values()]
        return made

    return copied


@raised_on_all_ranks()
def check_steps(factory: Any, kinds: Sequence[ParameterKind], mesh: DeviceMesh, *, compares: bool = True) -> None:
    """Refuse an optimizer that fails with sharded parameters, or steps otherwise than with unsharded ones. Collective.

    It is tried on small parameters that are sharded as the model's are, beside the same ones unsharded.
    What it cannot do with small unsharded ones, it may well do with the model's: then nothing is found.

    Args:
        mesh: along whose last dimension the parameters are sharded.
        compares: whether values are compared, too; not in a process group that exchanges nothing.
    """
    if not any(kind.is_sharded for kind in kinds):
        return
    try:
        expected = _stepped(factory, kinds, None)
    except Exception:  # of the small parameters: the model's may do, and else the first step tells
        return
    try:
        found = _stepped(factory, kinds, mesh)
    except Exception as error:
        if not is_about_the_model(error):
            raise
        raise UsageError(
            f"the optimizer cannot step parameters that are sharded among ranks ({described(error)})", fix=_OTHERWISE
        ) from error
    for kind, one, other in zip(kinds, found, expected, strict=True) if compares else ():
        step = (other - _values(kind, 0)).abs().max()
        off = (full_tensor(one).cpu() - other).abs().max()
        if other.isfinite().all() and not off <= _FAR * step:  # off may be NaN
            raise UsageError("the optimizer steps otherwise where parameters are sharded among ranks", fix=_OTHERWISE)


def _stepped(factory: Any, kinds: Sequence[ParameterKind], mesh: DeviceMesh | None) -> list[Tensor]:
    """Parameters of these kinds after some steps; sharded along a mesh, if there is one."""

    def placed(kind: ParameterKind, number: int) -> Tensor:
        full = _values(kind, number)
        if mesh is None or not kind.is_sharded:
            return full if mesh is None else full.to(mesh.device_type)
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        placements = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]
        return distribute_tensor(full.to(mesh.device_type), mesh, placements, **ALL_HAVE_IT)

    own = [nn.Parameter(placed(kind, 0)) for kind in kinds]
    optimizer = factory(iter(own))
    vars(optimizer)[TRIED] = True
    for number in range(1, 1 + _STEPS):
        for kind, one in zip(kinds, own, strict=True):
            one.grad = placed(kind, number)
        optimizer.step()
    return [one.detach() for one in own]


def _values(kind: ParameterKind, number: int) -> Tensor:
    """Some values, the same on all ranks."""
    shape = tuple(itertools.islice(itertools.cycle(_SIZES), kind.dimensions))
    return torch.randn(shape, dtype=getattr(torch, kind.dtype), generator=torch.Generator().manual_seed(number))
