"""Numbers of all ranks on one time axis, made of the states that each rank left at times of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sample = dict[str, float]  # the numbers of one state of a rank
Array = NDArray[np.float64]

_NAMES = ("trains", "step_seconds", "own_seconds", "data_seconds", "cpu", "memory", "gpu", "gpu_memory")
_MOST_TIMES = 120
NO_TRAINING = -1.0  # in place of a rank's lateness


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """The numbers of all ranks: a row per rank, a column per time, NaN where a number is unknown."""

    began: float  # Unix time
    seconds: Array  # since then
    ranks: list[int]
    numbers: dict[str, Array]

    def in_training(self, name: str) -> Array:
        """Return a number of all ranks, NaN while they do not train."""
        return np.where(self.numbers["trains"] == 1, self.numbers[name], np.nan)

    @property
    def knows_own_time(self) -> bool:
        """Whether ranks recorded how long they compute without waiting for another rank."""
        return bool((self.numbers["own_seconds"] > 0).any())

    def lateness(self) -> Array:
        """Return the part of a step, from 0 to 1, for which the other ranks wait for each rank.

        A rank is late by the time that it needs beyond the median of the ranks, in whole steps if its own time is unknown.
        """
        steps = self.in_training("step_seconds")
        own = self.in_training("own_seconds") if self.knows_own_time else steps
        known = np.isfinite(own).sum(axis=0)
        median = np.take_along_axis(np.sort(own, axis=0), np.maximum(known - 1, 0)[None] // 2, axis=0)
        late = np.maximum(own - median, 0) / np.where(steps > 0, steps, np.nan)
        late[:, known < min(2, len(self.ranks))] = np.nan  # a rank is late in comparison with another
        return np.where(self.numbers["trains"] == 0, NO_TRAINING, late)

    def parts_of_step(self) -> dict[str, Array]:
        """Return milliseconds of a training step by what the ranks do in it, as a mean over the ranks."""
        step, own, data = (1000 * mean(self.in_training(f"{name}_seconds")) for name in ("step", "own", "data"))
        parts = {"waiting for data": data}
        if self.knows_own_time:
            parts |= {"forward pass": own - np.nan_to_num(data), "backward pass, communication, update": step - own}
        else:
            parts |= {"computing, communication, update": step - np.nan_to_num(data)}
        return {name: np.maximum(part, 0) for name, part in parts.items() if np.isfinite(part).any()}


def rank_times(histories: Sequence[tuple[int, list[Sample]]]) -> RankTimes | None:
    """Bring the ranks' states to common times. Return None if there are no states.

    A state holds from the one before it in the same attempt. Nothing is known between two attempts.
    """
    times = [sample["time"] for _, samples in histories for sample in samples]
    if not times:
        return None
    number = min(_MOST_TIMES, max(len(samples) for _, samples in histories))
    at, gap = np.linspace(min(times), max(times), number, retstep=True)
    ranks = sorted({rank for rank, _ in histories})
    numbers = {name: np.full((len(ranks), number), np.nan) for name in _NAMES}
    for rank, samples in histories:
        own = np.array([sample["time"] for sample in samples])
        places = np.searchsorted(own, at)
        is_known = (places < len(own)) & ~(at <= own[0] - gap)
        for name, rows in numbers.items():
            values = np.array([sample.get(name, np.nan) for sample in samples])
            rows[ranks.index(rank), is_known] = values[places[is_known]]
    return RankTimes(began=min(times), seconds=at - min(times), ranks=ranks, numbers=numbers)


def mean(values: Array, axis: int = 0) -> Array:
    """Return the mean of the known values, NaN where there are none."""
    return np.asarray(np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan))


def largest(values: Array, axis: int = 0) -> Array:
    """Return the largest of the known values, NaN where there are none."""
    return np.asarray(np.fmax.reduce(values, axis=axis))
