"""Texts about what was measured several times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def spread(numbers: Iterable[float], digits: int = 3) -> str:
    """The median, and the range."""
    found = sorted(numbers)
    middle, least, most = (f"{one:.{digits}f}" for one in (statistics.median(found), found[0], found[-1]))
    return f"{middle} ({least} to {most})"


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    """One quotient per round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]
