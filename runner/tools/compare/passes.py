"""The passes of a pipeline's step. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

KINDS = {
    "forward": "forward",
    "backward": "backward",
    "inputs": "backward: inputs' gradients",
    "weights": "backward: weights' gradients",
}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A micro-batch in a stage; ``kind`` is one of KINDS. Times in seconds since the first pass of the step began."""

    rank: int
    stage: int
    micro_batch: int
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline."""

    passes: tuple[Pass, ...]

    @property
    def seconds(self) -> float:
        """From the first pass's start to the last one's end."""
        return max(one.end for one in self.passes)

    @property
    def stages(self) -> dict[int, list[int]]:
        """The stages of each rank, in the pipeline's order."""
        found: dict[int, set[int]] = defaultdict(set)
        for one in self.passes:
            found[one.rank].add(one.stage)
        return {rank: sorted(stages) for rank, stages in found.items()}

    @property
    def idle(self) -> float:
        """The share of the ranks' time in which they are in no pass."""
        busy = sum(one.end - one.start for one in self.passes)
        return 1 - busy / (self.seconds * len(self.stages))
