"""Comparison of the data that ranks are given, by a few numbers from each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds, number_of
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.run import Run

# Relative to the mean magnitude: processors of different kinds compute their last bits differently. The sketches of two random arrays
# of 10⁶ elements differ by some 10⁻³.
_TOLERANCE = 1e-4
_SKETCHED = 1 << 16  # elements of an array that are read, or twice as many


class Sketch(NamedTuple):
    """A sketch of a sample or a batch, which is nearly equal for nearly equal samples, and differs for others.

    Attributes:
        form: a digest of dtypes, shapes and texts.
        numbers: for each array the mean of its elements times the cosines of their places, and the mean of their magnitudes.
        is_known: whether it has only parts of kinds that are known here.
    """

    form: int
    numbers: list[tuple[float, float]]
    is_known: bool


def sketch_of(value: Any) -> Sketch:
    """Return a sketch of a sample, a batch, or a list of them."""
    forms: list[str] = []
    numbers: list[tuple[float, float]] = []
    is_known = _add(value, forms, numbers)
    return Sketch(number_of(" ".join(forms)), numbers, is_known)


def _add(value: Any, forms: list[str], numbers: list[tuple[float, float]]) -> bool:
    """Add a part of a sample to its sketch, and return whether the part's kind is known."""
    if value is None or isinstance(value, str | bytes):
        forms.append(repr(value))
    elif isinstance(value, Mapping):
        return _add([part for item in value.items() for part in item], forms, numbers)
    elif isinstance(value, list | tuple):
        known = [_add(part, forms, numbers) for part in value]
        return all(known)
    elif isinstance(value, Tensor | numpy.ndarray | numpy.generic | bool | int | float | complex):
        tensor = value.detach().cpu().resolve_conj() if isinstance(value, Tensor) else torch.tensor(value)
        forms.append(f"{tensor.dtype} {list(tensor.shape)}")
        values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        values = values[:: max(1, len(values) // _SKETCHED) | 1].double()
        if len(values):
            along = torch.arange(len(values), dtype=values.dtype).cos()
            numbers.append((float((values * along).mean()), float(values.abs().mean())))
    else:
        forms.append(type(value).__name__)
        return False
    return True


def are_near(one: Sketch, other: Sketch) -> bool:
    """Return whether two sketches are of the same sample, except for its last bits."""
    if (one.form, len(one.numbers)) != (other.form, len(other.numbers)):
        return False
    both = torch.tensor([one.numbers, other.numbers], dtype=torch.float64)
    return not bool(((both[0] - both[1]).abs() > _TOLERANCE * both.amax(0)[..., 1:]).any())


def ranks_unlike_first(run: Run, sketch: Sketch) -> list[int]:
    """Return the ranks whose sketch differs from that of rank 0. Collective."""
    first = run.on_main(lambda: sketch)
    differs = not are_near(first, sketch)
    if run.size == 1 or bounds([int(differs)], run.host_group) == [(0, 0)]:
        return []
    everyone = [differs] * run.size
    dist.all_gather_object(everyone, differs)
    return [rank for rank, one in enumerate(everyone) if one]


def check_keys(run: Run, sampler: Any, keys: str) -> None:
    """Check that a sampler draws the same keys on all ranks. Collective.

    Args:
        keys: the first keys of an epoch, as a text.

    Raises:
        UsageError: the ranks' keys differ.
    """
    if run.size > 1 and len({*bounds([number_of(keys)], run.host_group)[0]}) > 1:
        with raised_on_all_ranks():
            raise UsageError(
                f"{type(sampler).__name__} draws other keys on each rank",
                fix="seed its random numbers alike on all ranks; derive it from DistributedSampler if it gives each rank its own keys",
            )
