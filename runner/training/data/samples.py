"""A look at some samples of a data set before a training begins: which batch they make, and whether all ranks have them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from runner.base.errors import UsageError
from runner.training.data.alike import Sketch, sketch_of
from runner.training.data.loading import Reading, samples_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import Source, length_of

_QUICK = 0.2  # seconds for a batch of two samples, above which no more are read

Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Look:
    """The result of a look at the data.

    Attributes:
        batch: of the first samples, as the loader makes it; None for a stream, or if they make none that can be trained on.
        problem: why it cannot be trained on, if it cannot.
        sketch: of some samples; None if they have no numbers, do not read the same twice, as with random augmentation, take long to
            read, or have parts of an unknown kind.
    """

    batch: Any = None
    problem: UsageError | None = None
    sketch: Sketch | None = None


def look_at(
    source: Source, keys: list[Any], reading: Reading, *, sketch: bool = False, check: Check | None = None
) -> Look:
    """Read the samples of these keys, and if that is quick and a sketch is wanted, some samples three times.

    Random numbers continue as if nothing had been read. Where other processes read the data, one of them reads here, too: data that
    open a file at their first sample have it for themselves in each of those.

    Args:
        reading: by which processes the data is read.
        check: raises a UsageError for a batch that cannot be trained on, and returns it in the form that the task needs.
    """
    first = _First(source, keys, sketch=sketch, check=check)
    workers = min(reading.num_workers, 1)
    by_one = Reading(num_workers=workers, multiprocessing_context=reading.multiprocessing_context if workers else None)
    with own_random_numbers("a look at the data"):  # of which the loader draws a seed for its processes
        look: Look = next(iter(by_one.loader(first)))
    return look


class _First(Dataset[Look]):
    """Reads in a loader's process. The only sample is the look."""

    def __init__(self, source: Source, keys: list[Any], *, sketch: bool, check: Check | None) -> None:
        self._source, self._keys, self._wants_sketch, self._check = source, keys, sketch, check

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Look:
        source, start = self._source, time.monotonic()
        with own_random_numbers("a look at the data"):
            samples = samples_of(source.data, self._keys)
        is_quick = time.monotonic() - start < _QUICK
        batch, problem = None, None
        try:
            batch = source.collate(samples)
            batch = self._check(batch) if self._check else batch
        except UsageError as error:
            problem = error
        except Exception as error:  # torch has several, by what the samples are
            if "shared memory" in str(error):
                raise
            what = (str(error).strip().splitlines() or [""])[0]
            problem = UsageError(
                f"the data's first samples make no batch ({type(error).__name__}: {what})",
                fix="make each sample of tensors, arrays or numbers, of the same shape in all samples, or give a collate_fn",
            )
        return Look(batch, problem, self._sketch() if self._wants_sketch and is_quick else None)

    def _sketch(self) -> Sketch | None:
        data, length, found = self._source.data, length_of(self._source.data), []
        if not all(isinstance(key, int) for key in self._keys):
            return None
        keys = dict.fromkeys((0, length // 3, 2 * length // 3, length - 1))  # samplers may draw others on each rank
        for turn in ("first", "second", "third"):
            with own_random_numbers(f"the {turn} look at the data"):
                try:
                    found.append(sketch_of(samples_of(data, list(keys))))
                except Exception:  # the training will tell
                    return None
        is_told = found[0].is_known and len(set(map(repr, found))) == 1
        return found[0] if is_told else None
