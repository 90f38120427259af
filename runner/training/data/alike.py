"""Whether all ranks are given the same data: what they have is compared by small numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sized
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds, number_of
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.data.orders import DRAWN
from runner.training.run import Run

# Of sketches, relative to the mean magnitude: those of two random arrays of 10⁶ elements differ by some 10⁻³.
_TOLERANCE = 1e-4
_told = set[str]()  # kinds of samplers of which a line has told
_SKETCHED = 1 << 16  # numbers of a part of a sample that are looked at, or twice as many


class Sketch(NamedTuple):
    """A sketch of a sample or a batch: it tells it from others, and is nearly equal for nearly equal ones.

    Attributes:
        form: dtypes, shapes and texts.
        numbers: of each array: the mean of its elements times the cosines of their places, and the mean of their magnitudes.
        is_known: whether it has only parts of kinds that are known here.
    """

    form: str
    numbers: list[tuple[float, float]]
    is_known: bool


def sketch_of(value: Any) -> Sketch:
    """Return a sketch of a sample, a batch, or a list of some."""
    forms: list[str] = []
    numbers: list[tuple[float, float]] = []
    is_known = _add(value, forms, numbers)
    return Sketch(" ".join(forms), numbers, is_known)


def _add(value: Any, forms: list[str], numbers: list[tuple[float, float]]) -> bool:
    """Add a part of a sample. Returns whether its kind is known."""
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


def are_alike(run: Run, sketch: Sketch) -> bool:
    """Return whether all ranks have the same, as far as its sketch tells. Collective."""
    if not is_same_text(run, f"{sketch.form} {len(sketch.numbers)}"):
        return False
    both = torch.tensor([sketch.numbers, [(-one, -size) for one, size in sketch.numbers]], dtype=torch.float64)
    if run.size > 1 and sketch.numbers:
        dist.all_reduce(both, dist.ReduceOp.MAX, group=run.host_group)
    return are_near(both[0], -both[1])


def ranks_with_others(run: Run, sketch: Sketch) -> list[int]:
    """Return the ranks that have another sketch than rank 0. Collective: all sketches are gathered, to name them in a refusal."""
    everyone: list[Any] = [sketch] * run.size
    dist.all_gather_object(everyone, sketch)
    first, (form, numbers, _) = torch.tensor(everyone[0].numbers), everyone[0]

    def is_alike(one: Sketch) -> bool:
        if (one.form, len(one.numbers)) != (form, len(numbers)):
            return False
        own = torch.tensor(one.numbers)
        return are_near(first.maximum(own), first.minimum(own))

    return [rank for rank, one in enumerate(everyone) if not is_alike(one)]


def are_near(highest: Tensor, lowest: Tensor) -> bool:
    """Return whether the numbers of several sketches, [arrays, 2], are of the same arrays.

    Processors of different kinds compute their last bits differently.
    """
    return not bool((highest - lowest > _TOLERANCE * highest[..., 1:]).any())


def is_same_text(run: Run, text: str) -> bool:
    """Return whether all ranks have the same text. Collective."""
    ((smallest, largest),) = bounds([number_of(text)], run.host_group) if run.size > 1 else [(0, 0)]
    return smallest == largest


def keys_of_all(run: Run, sampler: Any, keys: Iterator[Any]) -> Iterator[Any]:
    """Return the keys that a sampler draws for an epoch if they are the same on all ranks, else rank 0's. Collective.

    Raises:
        UsageError: they are not, and have no end.
    """
    first = list(itertools.islice(keys, DRAWN))
    if is_same_text(run, repr(first)):
        return itertools.chain(first, keys)
    name = type(sampler).__name__
    if not isinstance(sampler, Sized):
        with raised_on_all_ranks():
            raise UsageError(
                f"{name} draws other keys on each rank, and has no length",
                fix="seed its random numbers alike on all ranks",
            )
    if name not in _told:  # once, and not for each epoch
        run.print(
            f"{name} draws other keys on each rank: all take rank 0's. A run that resumes in mid-epoch draws others: to seed it, give it "
            "set_epoch(), or draw by torch's, NumPy's or Python's global random numbers"
        )
    _told.add(name)
    return iter(run.on_main(lambda: [*first, *keys]))
