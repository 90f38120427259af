"""A scaling study: its rows, a size each, and the file that keeps it."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError

_FORMAT = 2
STRONG, WEAK = "strong", "weak"


@dataclass(kw_only=True)
class Size:
    """A number of ranks.

    Attributes:
        batch: samples of all ranks per step; 0: not known, and each rank has a batch of its own.
        rounds: seconds of a step, the median of each round.
        waiting: seconds of a step for which data was waited for, the mean over ranks.
        memory: bytes of the rank that had most.
        warnings: what speaks against the figures.
        problem: why there are none.
    """

    ranks: int
    hosts: int = 0
    batch: int = 0
    rounds: list[float] = field(default_factory=list)
    waiting: float = 0.0
    memory: int = 0
    warnings: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def seconds(self) -> float:
        """The seconds of a step: the median of the rounds."""
        return statistics.median(self.rounds) if self.rounds else math.nan

    @property
    def spread(self) -> float:
        """How far the rounds are from their median, relative to it."""
        return max((abs(one / self.seconds - 1) for one in self.rounds), default=0.0)

    @property
    def speed(self) -> float:
        """Samples per second of all ranks; if the batch is not known, steps of all ranks per second."""
        return (self.batch or self.ranks) / self.seconds


@dataclass(kw_only=True)
class Study:
    """Rows in the order of their ranks, and what they were measured with."""

    target: str
    sizes: list[Size]
    command: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # hardware, versions, date

    @property
    def measured(self) -> list[Size]:
        """The sizes that have figures."""
        return [size for size in self.sizes if size.rounds]

    @property
    def base(self) -> Size | None:
        """The smallest size that was measured, to which the others are compared."""
        return min(self.measured, key=lambda size: size.ranks, default=None)

    @property
    def scaling(self) -> str:
        """Strong: the batch of all ranks is the same on any number of them. Weak: it grows with them."""
        batches = {size.batch for size in self.measured}
        return STRONG if len(self.measured) > 1 and len(batches) == 1 and batches != {0} else WEAK

    def speed_up(self, size: Size) -> float:
        """Return how many times as fast as the base a size is."""
        assert self.base is not None
        return size.speed / self.base.speed

    def efficiency(self, size: Size) -> float:
        """Return the speed-up over how many times as many ranks there are."""
        assert self.base is not None
        return self.speed_up(size) * self.base.ranks / size.ranks

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
        if form == _FORMAT:
            sizes = [Size(**size) for size in content.pop("sizes")]
            study = Study(sizes=sizes, **content)
            if not all(size.ranks > 0 and all(0 < seconds < math.inf for seconds in size.rounds) for size in sizes):
                raise ValueError
            return study
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix="name the JSON file of a study") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no study", fix="name what scale --json has written") from None
    raise UsageError(f"{path} has format {form}, and this runner reads {_FORMAT}", fix="measure again")
