"""What bench finds: a line of its ``--json``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One operation of one size by one backend. Times in seconds per call, of the slowest rank."""

    operation: str
    backend: str
    size: int  # bytes
    ranks: int
    hosts: int  # on which the ranks are
    seconds: float  # median over rounds
    fastest: float
    slowest: float
    mean: float  # over all rounds
    algorithm_bandwidth: float  # bytes/s
    bus_bandwidth: float  # bytes/s
    wrong: int  # elements
