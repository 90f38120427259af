"""What a strategy does not bear of a model or an optimizer, in one line, before the first step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from runner.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.state import whole_of

_SIZES = (4, 3, 5, 2, 6)  # of the dimensions of parameters that an optimizer is tried with
# How many steps, and which share of one is more than rounding: that of Muon, which computes in bfloat16, is up to 0.04.
_STEPS, _FAR = 2, 0.2
# Errors that say nothing of what a model or an optimizer is.
NOT_ABOUT_THE_MODEL = (RunnerError, torch.OutOfMemoryError, torch.distributed.DistError)


@raised_on_all_ranks()
def check_shapes(model: nn.Module) -> None:
    """Refuse a model that is not yet all there.

    Raises:
        UsageError: a parameter or buffer has no shape yet.
    """
    lazy = next((name for name, one in [*model.named_parameters(), *model.named_buffers()] if is_lazy(one)), None)
    if lazy is not None:
        raise UsageError(
            f"{lazy} has no shape yet, as lazy modules get theirs in their first call",
            fix="call the model once on a sample before its training",
        )


@raised_on_all_ranks()
def check_divisible(model: nn.Module) -> None:
    """Refuse a model of which ranks cannot have parts.

    Raises:
        UsageError: a module gives sparse gradients.
    """
    if sparse := sparse_modules(model):
        raise UsageError(
            f"{sparse[0]} gives sparse gradients, which a divided model cannot exchange",
            fix="leave out sparse=True, or take --strategy ddp or zero1",
        )


def sparse_modules(model: nn.Module) -> list[str]:
    """The names of the modules that give sparse gradients of their weights."""
    kinds = nn.Embedding, nn.EmbeddingBag
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.sparse]


@contextmanager
def borne_by(what: str) -> Iterator[None]:
    """The context in which torch wraps or divides a model: what it does not bear is told in one line.

    Raises:
        UsageError: torch has raised something.
    """
    with raised_on_all_ranks():
        try:
            yield
        except NOT_ABOUT_THE_MODEL:
            raise
        except Exception as error:
            raise UsageError(
                f"{what} does not bear this model ({described(error)})", fix="take --strategy ddp"
            ) from error


def described(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@raised_on_all_ranks()
def check_steps(factory: Any, parameters: Sequence[nn.Parameter], *, compares: bool = True) -> None:
    """Try the optimizer on small parameters that are divided as the model's are, beside the same ones whole. Collective.

    What it cannot do with small whole ones, it may well do with the model's: then nothing is found.

    Args:
        factory: of the optimizer.
        parameters: this rank's.
        compares: whether values are compared, too; not in a process group that exchanges nothing.

    Raises:
        UsageError: it fails with divided parameters, or its steps are others.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    divided = [one for one in parameters if isinstance(one, DTensor) and one.requires_grad]
    if not divided:
        return
    mesh = divided[0].device_mesh
    placements = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]
    kinds = sorted(
        {(one.dim(), isinstance(one, DTensor), one.dtype) for one in parameters if one.requires_grad}, key=str
    )
    values = [(_values(dimensions, dtype, 0), is_divided) for dimensions, is_divided, dtype in kinds]

    def part(value: Tensor, *, is_divided: bool) -> Tensor:
        whole = value.to(mesh.device_type)
        return distribute_tensor(whole, mesh, placements, src_data_rank=None) if is_divided else whole

    def stepped(*, divides: bool) -> list[Tensor]:
        own = [nn.Parameter(part(value.clone(), is_divided=divides and is_divided)) for value, is_divided in values]
        optimizer = factory(iter(own))
        for number in range(1, 1 + _STEPS):
            for one, (value, is_divided) in zip(own, values, strict=True):
                gradient = _values(value.dim(), value.dtype, number)
                one.grad = part(gradient, is_divided=divides and is_divided)
            optimizer.step()
        return [whole_of(one.detach()) for one in own]

    try:
        expected = stepped(divides=False)
    except Exception:
        return
    try:
        found = stepped(divides=True)
    except Exception as error:
        raise UsageError(
            f"the optimizer cannot step parameters that are divided among ranks ({described(error)})", fix=_OTHERWISE
        ) from error
    for one, other, (value, _) in zip(found, expected, values, strict=True):
        step = (other.cpu() - value).abs().max()
        if compares and (one - other).abs().max() > _FAR * step:
            raise UsageError("the optimizer steps otherwise where parameters are divided among ranks", fix=_OTHERWISE)


_OTHERWISE = "take another optimizer, or --strategy ddp or zero1"


def _values(dimensions: int, dtype: torch.dtype, number: int) -> Tensor:
    """Some values, the same on all ranks, for a parameter of so many dimensions."""
    shape = tuple(itertools.islice(itertools.cycle(_SIZES), dimensions))
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(number))
