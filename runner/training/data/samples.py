"""A look at some samples of a data set before a training begins: the batch that they make, and a sketch to compare on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner.base.errors import UsageError
from runner.training.data.alike import Sketch, sketch_of
from runner.training.data.loading import Reading, Yielded, samples_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import Source

_QUICK_SECONDS = 0.2  # the time for a batch of two samples above which no more samples are read

Check = Callable[[Any], Any]


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
