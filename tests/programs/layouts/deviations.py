"""By how much numbers differ that should be equal."""

import math
from collections.abc import Iterable


def largest(deviations: Iterable[float]) -> float:
    """The largest; infinity if one is not finite: ``max`` may ignore NaN."""
    found = list(deviations)
    return max(found, default=0.0) if all(map(math.isfinite, found)) else math.inf
