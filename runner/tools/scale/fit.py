"""A curve of a step's time over the number of ranks, fitted to measured sizes, which predicts larger ones.

Strong scaling, n ranks:  T(n) = c/n + [n > 1]·(a + b·n)     c: computing of one rank alone; a, b: what an exchange costs, and costs more per rank
Weak scaling:             T(n) = c + [n > 1]·(a + b·n)

The term a is latency and the bytes that each rank sends whatever their number (a ring's 2(n-1)/n is near 2), b what grows with the
ranks: a ring's steps, stragglers. None of them is negative. The exchange's part was the model of Amdahl's law with communication in
Hager and Wellein, "Introduction to High Performance Computing for Scientists and Engineers", 2010, section 5.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from runner.tools.scale.study import Size


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Seconds: ``c`` computing, ``a`` and ``b`` exchange. ``errors`` are relative, of each point predicted from the others."""

    weak: bool
    c: float
    a: float
    b: float
    spread: float  # relative: how far the points are from the curve, or what measuring leaves open, whichever is larger
    errors: tuple[tuple[int, float], ...] = ()

    def seconds(self, ranks: float) -> float:
        """Return the seconds of a step on so many ranks."""
        return float(_terms(ranks, weak=self.weak) @ np.array([self.c, self.a, self.b]))

    def interval(self, ranks: float) -> tuple[float, float]:
        """Return the interval in which a step's time is expected: the largest error of a checked prediction, or the spread, on both sides."""
        share = max([self.spread, *(abs(error) for _, error in self.errors)])
        return self.seconds(ranks) / (1 + share), self.seconds(ranks) * (1 + share)


def fit_of(points: Sequence[Size], *, weak: bool) -> Fit | None:
    """The curve through the points; None: there are fewer than two sizes.

    With two sizes it has no b. Each point is left out in turn, where three are left, and predicted from the others.
    """
    if len({point.ranks for point in points}) < 2:
        return None
    found = _fit(points, weak=weak)
    errors = []
    for left_out in points:
        others = [point for point in points if point is not left_out]
        if len({point.ranks for point in others}) >= 3:
            predicted = _fit(others, weak=weak).seconds(left_out.ranks)
            errors.append((left_out.ranks, predicted / left_out.seconds - 1))
    return Fit(**{**vars(found), "errors": tuple(errors)})


def _terms(ranks: float, *, weak: bool) -> np.ndarray:
    """Return the factors of c, a and b."""
    exchanges = 1.0 if ranks > 1 else 0.0
    return np.array([1.0 if weak else 1.0 / ranks, exchanges, exchanges * ranks])


def _fit(points: Sequence[Size], *, weak: bool) -> Fit:
    """Least squares of relative deviations with no negative coefficient: the best of a, b, both or none beside c."""
    seconds = np.array([point.seconds for point in points])
    weights = 1 / seconds
    rows = np.array([_terms(point.ranks, weak=weak) for point in points])
    most = len({point.ranks for point in points})
    best, least = np.zeros(3), math.inf
    for count in range(min(3, most)):
        for kept in itertools.combinations((1, 2) if most > 2 else (1,), count):
            columns = [0, *kept]
            solved = np.linalg.lstsq(rows[:, columns] * weights[:, None], seconds * weights, rcond=None)[0]
            if (solved < 0).any():
                continue
            tried = np.zeros(3)
            tried[columns] = solved
            left = float(np.sum(((rows @ tried - seconds) * weights) ** 2))
            if left < least * (1 - 1e-9):
                best, least = tried, left
    deviations = np.abs(rows @ best / seconds - 1)
    c, a, b = (float(one) for one in best)
    return Fit(weak=weak, c=c, a=a, b=b, spread=max(float(deviations.max()), *(point.spread for point in points)))
