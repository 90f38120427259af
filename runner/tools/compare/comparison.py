"""What compare finds: an engine of its ``--json``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of an engine. Times in seconds, of the slowest rank; memory in bytes."""

    engine: str
    samples_per_s: float  # of all ranks, at the median step
    step: float  # median
    step_low: float  # 10th percentile
    step_high: float  # 90th percentile
    ratio: float  # first engine's step ÷ this one's, median over rounds: above 1 is faster
    ratio_low: float
    ratio_high: float
    communication: float  # step minus a step without any exchange
    memory: int  # rise of the peak while the engine is built and does its first steps
    loss: float  # of the last step, mean over ranks
    ranks_agree: bool  # whether the weights are bit-equal on all ranks
    distance: float  # relative, from the first engine's weights
    sent: float | None  # bytes per step, of the rank that sends most; None if they cannot be counted
