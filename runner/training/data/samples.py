"""A look at some samples of a data set before a training begins: which batch they make, and whether all ranks have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from runner.base.errors import UsageError
from runner.training.data.loading import samples_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import Source, length_of

_QUICK = 0.2  # seconds for a batch of two samples, above which no more are read
# Of sketches, relative to the mean magnitude: those of two random arrays of 10⁶ elements differ by some 10⁻³.
_TOLERANCE = 1e-4
_SKETCHED = 1 << 16  # numbers of a part of a sample that are looked at, or twice as many

Check = Callable[[Any], Any]


class Sketch(NamedTuple):
    """What tells a sample from others, and is nearly the same for samples that are nearly so.

    Attributes:
        form: dtypes, shapes and texts.
        numbers: of each array: the mean of its elements times the cosines of their places, and the mean of their magnitudes.
    """

    form: str
    numbers: tuple[tuple[float, float], ...]

    def is_like(self, other: Sketch) -> bool:
        """Whether they are of one sample. Processors of different kinds compute its last bits differently."""
        return self.form == other.form and all(
            not abs(one - its) > _TOLERANCE * max(size, its_size)
            and not abs(size - its_size) > _TOLERANCE * max(size, its_size)
            for (one, size), (its, its_size) in zip(self.numbers, other.numbers, strict=True)
        )


@dataclass(frozen=True)
class Look:
    """What was seen.

    Attributes:
        length: of the data; None of a stream, of which nothing is read.
        batch: of the first samples, as the loader makes it; None if they make none that can be trained on.
        problem: why it cannot be trained on, if it cannot.
        sketches: of some samples; None if they do not read the same twice, as with random augmentation, if reading takes long, or
            if a sample has parts of an unknown kind.
    """

    length: int | None
    batch: Any
    problem: UsageError | None
    sketches: tuple[Sketch, ...] | None


def look_at(source: Source, count: int, workers: int, *, sketches: bool, check: Check | None = None) -> Look:
    """Read the first samples, and if that is quick and sketches are wanted, four samples three times.

    Random numbers continue as if nothing had been read. Where other processes read the data, one of them reads here, too: data that
    open a file at their first sample have it for themselves in each of those.

    Args:
        count: how many samples make a batch, at most.
        workers: data loader processes of the training.
        sketches: whether they are wanted.
        check: raises a UsageError for a batch that cannot be trained on, and returns it in the form that the task needs.

    Raises:
        UsageError: the data has no length, or no numbered samples.
    """
    if source.is_stream:
        return Look(None, None, None, None)
    first = _First(source, min(count, length_of(source.data)), sketches=sketches, check=check)
    with own_random_numbers("a look at the data"):  # of which the loader draws a seed for its processes
        look: Look = next(iter(DataLoader(first, batch_size=None, num_workers=min(workers, 1))))
    return look


class _First(Dataset[Look]):
    """Reads in a loader's process. The only sample is the look."""

    def __init__(self, source: Source, count: int, *, sketches: bool, check: Check | None) -> None:
        self._data, self._collate, self._is_single = source.data, source.collate, source.is_single
        self._count, self._wants_sketches, self._check = count, sketches, check

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Look:
        length, start = length_of(self._data), time.monotonic()
        with own_random_numbers("a look at the data"):
            samples = samples_of(self._data, list(range(self._count)))
        is_quick = time.monotonic() - start < _QUICK
        batch, problem = None, None
        try:
            if not length:
                raise UsageError(
                    f"the data ({type(self._data).__name__}) has no samples", fix="give it some, or leave it out"
                )
            batch = self._collated(samples)
            batch = self._check(batch) if self._check else batch
        except UsageError as error:
            problem = error
        sketches = _sketches(self._data, length) if self._wants_sketches and is_quick and length else None
        return Look(length, batch, problem, sketches)

    def _collated(self, samples: list[Any]) -> Any:
        """A batch.

        Raises:
            UsageError: the samples make none.
        """
        try:
            return self._collate(samples[0] if self._is_single else samples)
        except Exception as error:  # torch has several, by what the samples are
            if "shared memory" in str(error):
                raise
            what = (str(error).strip().splitlines() or [""])[0]
            raise UsageError(
                f"the data's first samples make no batch ({type(error).__name__}: {what})",
                fix="make each sample of tensors, arrays or numbers, of the same shape in all samples, or give a collate_fn",
            ) from None


def _sketches(data: Dataset[Any], length: int) -> tuple[Sketch, ...] | None:
    numbers = list(dict.fromkeys((0, length // 3, 2 * length // 3, length - 1)))
    found = []
    for turn in ("first", "second", "third"):
        with own_random_numbers(f"the {turn} look at the data"):
            try:
                found.append([_sketch(sample) for sample in samples_of(data, numbers)])
            except Exception:  # the training will tell
                return None
        if None in found[-1] or repr(found[-1]) != repr(found[0]):
            return None
    return tuple(sketch for sketch in found[0] if sketch is not None)


def _sketch(sample: Any) -> Sketch | None:
    """A sample's sketch; None if it has parts of an unknown kind."""
    forms: list[str] = []
    numbers: list[tuple[float, float]] = []
    return Sketch(" ".join(forms), tuple(numbers)) if _add(sample, forms, numbers) else None


def _add(value: Any, forms: list[str], numbers: list[tuple[float, float]]) -> bool:
    """Add a part of a sample. Returns whether its kind is known."""
    if value is None or isinstance(value, str | bytes):
        forms.append(repr(value))
    elif isinstance(value, Mapping):
        return all(_add(part, forms, numbers) for item in value.items() for part in item)
    elif isinstance(value, list | tuple):
        return all(_add(part, forms, numbers) for part in value)
    elif isinstance(value, Tensor | numpy.ndarray | numpy.generic | bool | int | float | complex):
        tensor = value.detach().cpu().resolve_conj() if isinstance(value, Tensor) else torch.tensor(value)
        forms.append(f"{tensor.dtype} {list(tensor.shape)}")
        values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        values = values[:: max(1, len(values) // _SKETCHED) | 1].double()
        if len(values):
            along = torch.arange(len(values), dtype=values.dtype).cos()
            numbers.append((float((values * along).mean()), float(values.abs().mean())))
    else:
        return False
    return True
