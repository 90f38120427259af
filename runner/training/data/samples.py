"""A look at some samples of a data set before a training begins, and the comparison of the data that ranks are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds, number_of
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.data.loading import Reading, Yielded, samples_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import Source
from runner.training.run import Run

_QUICK_SECONDS = 0.2  # the time for a batch of two samples above which no more samples are read
# Relative to the mean magnitude: processors of different kinds compute their last bits differently. The sketches of two random arrays
# of 10⁶ elements differ by some 10⁻³.
_TOLERANCE = 1e-4
_SKETCHED = 1 << 16  # elements of an array that are read, or twice as many

Check = Callable[[Any], Any]


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


@dataclass(frozen=True)
class Look:
    """The result of a look at the data.

    Attributes:
        batch: the first samples as a batch; None for a stream, or if they make no batch that can be trained on.
        problem: the reason why the batch cannot be trained on, if it cannot.
        sketch: a sketch of some samples; None if they do not read the same each time (random augmentation), take long to read, or have
            parts of an unknown kind.
    """

    batch: Any = None
    problem: UsageError | None = None
    sketch: Sketch | None = None


def look_at(
    source: Source, keys: list[Any], reading: Reading, *, sketch: bool = False, check: Check | None = None
) -> Look:
    """Read the samples of these keys, and if that is quick and a sketch is wanted, some samples three times.

    Random numbers continue as if nothing had been read. If other processes read the data, one of them reads here, too, because some
    data sets open a file at their first sample, which each process needs for itself.

    Args:
        check: raises a UsageError for a batch that cannot be trained on, and returns it in the form that the task needs.
    """
    workers = min(reading.num_workers, 1)
    by_one = Reading(num_workers=workers, multiprocessing_context=reading.multiprocessing_context if workers else None)
    with own_random_numbers("a look at the data"):  # the loader draws a seed for its processes
        look: Look = next(iter(by_one.loader(Yielded(partial(_looks, source, keys, sketch, check)))))
    return look


def _looks(source: Source, keys: list[Any], wants_sketch: bool, check: Check | None) -> Iterator[Look]:
    """Yield one look, in the process that reads."""
    start = time.monotonic()
    with own_random_numbers("a look at the data"):
        samples = samples_of(source.data, keys)
    is_quick = time.monotonic() - start < _QUICK_SECONDS
    batch, problem = None, None
    try:
        batch = source.collate(samples)
        batch = check(batch) if check else batch
    except UsageError as error:
        problem = error
    except Exception as error:  # torch raises several kinds
        if "shared memory" in str(error):
            raise
        what = (str(error).strip().splitlines() or [""])[0]
        problem = UsageError(
            f"the data's first samples make no batch ({type(error).__name__}: {what})",
            fix="make each sample of tensors, arrays or numbers, of the same shape in all samples, or give a collate_fn",
        )
    yield Look(batch, problem, _sketch(source.data, keys) if wants_sketch and is_quick else None)


def _sketch(data: Any, keys: list[Any]) -> Sketch | None:
    if not all(isinstance(key, int) for key in keys):
        return None
    length, found = len(data), []
    fixed = dict.fromkeys((0, length // 3, 2 * length // 3, length - 1))  # samplers may draw others on each rank
    for turn in ("first", "second", "third"):
        with own_random_numbers(f"the {turn} look at the data"):
            try:
                found.append(sketch_of(samples_of(data, list(fixed))))
            except Exception:  # the training raises it again
                return None
    return found[0] if found[0].is_known and len(set(map(repr, found))) == 1 else None
