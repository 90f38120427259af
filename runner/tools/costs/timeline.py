"""The passes of a pipeline's step: timed, as ``compare`` records them, or in a schedule's time units, as ``plan`` puts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

KINDS = {
    "forward": "forward",
    "backward": "backward",
    "inputs": "backward: inputs' gradients",
    "weights": "backward: weights' gradients",
}
_FREES = ("backward", "weights")  # what a stage saved of a micro-batch is needed until then


@dataclass(frozen=True, kw_only=True)
class PipelinePass:
    """A micro-batch in a stage; ``kind`` is one of KINDS. Times since the first pass of the step began."""

    rank: int
    stage: int
    micro_batch: int
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline. The passes of each rank are in its order."""

    passes: tuple[PipelinePass, ...]

    @property
    def seconds(self) -> float:
        """From the first pass's start to the last one's end; of a schedule, in its units."""
        return max(one.end for one in self.passes)

    @property
    def stages(self) -> dict[int, list[int]]:
        """The stages of each rank, in the pipeline's order."""
        found: dict[int, set[int]] = defaultdict(set)
        for one in self.passes:
            found[one.rank].add(one.stage)
        return {rank: sorted(stages) for rank, stages in found.items()}

    @cached_property
    def idle(self) -> float:
        """The share of the ranks' time in which they are in no pass."""
        busy = sum(one.end - one.start for one in self.passes)
        return 1 - busy / (self.seconds * len(self.stages))

    def largest(self, rank: int, sizes: Mapping[int, int]) -> int:
        """The most that a rank holds at a time, if a micro-batch takes ``sizes[stage]`` from its forward to its backward pass."""
        return max(sum(count * sizes[stage] for stage, count in held) for held in self._held[rank])

    @cached_property
    def _held(self) -> Mapping[int, list[tuple[tuple[int, int], ...]]]:
        """By rank: how many micro-batches of each stage are held after each forward pass; each set once."""
        counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        seen: dict[int, dict[tuple[tuple[int, int], ...], None]] = defaultdict(dict)
        for one in self.passes:
            if one.kind == "forward":
                counts[one.rank][one.stage] += 1
                seen[one.rank][tuple(sorted(counts[one.rank].items()))] = None
            elif one.kind in _FREES:
                counts[one.rank][one.stage] -= 1
        return {rank: list(held) for rank, held in seen.items()}
