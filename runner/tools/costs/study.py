"""A scaling study: its rows, a size each, and the file that keeps it."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.tools.costs.fit import Fit, Point, fit

_FORMAT = 1
STRONG, WEAK = "strong", "weak"
# Student's t for a 95 % interval, by degrees of freedom (two-sided; NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2).
_T = (12.706, 4.303, 3.182, 2.776)
_FOR_ORDER = len(_T) + 2  # rounds from which on order statistics have a 95 % interval


@dataclass(kw_only=True)
class Size:
    """A number of ranks.

    Attributes:
        scaling: strong: the batch of all ranks stays; weak: that of a rank does.
        batch: samples of all ranks per step; 0: not known, so that speeds are in steps.
        rounds: seconds of a step, the median of each round.
        compute, exposed, waiting, imbalance: seconds of a step, means over ranks; imbalance: of the slowest rank's computing
            above the mean. None: not known.
        without_data: seconds of a step where loaders give one batch again and again; None: not measured, as no step waits for data.
        memory: bytes of the rank that had most.
        busy: share; joules: of all ranks per step; None: not known.
        others: the most cores of a host that other work used before a run.
        clock: the least of a device's clock frequency after the timed steps over that before them; None: not known.
        warnings: what speaks against the figures.
        problem: why there are none.
    """

    scaling: str
    ranks: int
    hosts: int = 0
    batch: int = 0
    rounds: list[float] = field(default_factory=list)
    compute: float | None = None
    exposed: float | None = None
    waiting: float | None = None
    imbalance: float | None = None
    without_data: float | None = None
    memory: int = 0
    busy: float | None = None
    joules: float | None = None
    others: float = 0.0
    clock: float | None = None
    warnings: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def seconds(self) -> float:
        """Of a step: the median of the rounds."""
        return statistics.median(self.rounds) if self.rounds else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of a step's seconds over the rounds; with one round nothing is known, and it has no width.

        From six rounds on it is the median's, by order statistics (Hoefler and Belli, "Scientific Benchmarking of Parallel Computing
        Systems", SC 2015, section 3.1.3): one run that was disturbed does not widen it. With fewer it is Student's t, around the median.
        """
        count = len(self.rounds)
        if count >= _FOR_ORDER:
            edge = max(k for k in range(count // 2) if _below(k, count) <= 0.025)
            ordered = sorted(self.rounds)
            return ordered[edge], ordered[-1 - edge]
        half = _T[count - 2] * statistics.stdev(self.rounds) / math.sqrt(count) if count > 1 else 0.0
        return max(self.seconds - half, 0.0), self.seconds + half

    @property
    def uncertainty(self) -> float:
        """Half of that interval's width."""
        low, high = self.interval
        return (high - low) / 2

    @property
    def waits_for_data(self) -> bool:
        """Whether a noticeable part of a step is that: more than a hundredth."""
        return self.waiting is not None and self.waiting > 0.01 * self.seconds

    @property
    def speed(self) -> float:
        """Samples per second of all ranks, or steps per second if the batch is not known."""
        return (self.batch or 1) / self.seconds

    @property
    def speed_interval(self) -> tuple[float, float]:
        low, high = self.interval
        return (self.batch or 1) / high, (self.batch or 1) / low if low else math.inf


@dataclass(kw_only=True)
class Study:
    """Rows in the order of their ranks, and what they were measured with."""

    target: str
    sizes: list[Size]
    command: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # hardware, versions, model, date

    def of(self, scaling: str) -> list[Size]:
        return [size for size in self.sizes if size.scaling == scaling]

    def measured(self, scaling: str) -> list[Size]:
        """Those that have figures."""
        return [size for size in self.of(scaling) if size.rounds]

    def base(self, scaling: str) -> Size | None:
        """The smallest size that was measured, to which the others are compared."""
        return min(self.measured(scaling), key=lambda size: size.ranks, default=None)

    def speed_up(self, size: Size) -> float:
        """How many times as fast as the base."""
        base = self.base(size.scaling)
        assert base is not None
        work = (size.batch or 1) / (base.batch or 1) if size.batch and base.batch else self._steps_work(size, base)
        return work * base.seconds / size.seconds

    def _steps_work(self, size: Size, base: Size) -> float:
        """How many times the work of the base a step is, where batches are not known: each rank has its own."""
        return size.ranks / base.ranks if size.scaling == WEAK else 1.0

    def efficiency(self, size: Size) -> float:
        """Speed-up over how many times as many ranks there are."""
        base = self.base(size.scaling)
        assert base is not None
        return self.speed_up(size) * base.ranks / size.ranks

    def fit(self, scaling: str) -> Fit | None:
        points = [
            Point(ranks=size.ranks, seconds=size.seconds, uncertainty=size.uncertainty)
            for size in self.measured(scaling)
        ]
        return fit(points, weak=scaling == WEAK)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")


def read_study(path: Path) -> Study:
    """Read a file of ``Study.write``.

    Raises:
        UsageError: it is none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        form = content.pop("format")
        sizes = [Size(**size) for size in content.pop("sizes")]
        study = Study(sizes=sizes, **content)
        if not all(size.ranks > 0 and all(0 < seconds < math.inf for seconds in size.rounds) for size in sizes):
            raise ValueError
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix="name the JSON file of a study") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no study", fix="name what scale --json has written") from None
    if form != _FORMAT:
        raise UsageError(f"{path} has format {form}, and this runner reads {_FORMAT}", fix="take a newer runner")
    return study


def _below(edge: int, count: int) -> float:
    """How likely so few of a sample are below the median, at most."""
    likely: float = sum(math.comb(count, k) for k in range(edge + 1)) / 2**count
    return likely
