"""What ``plan --ranks`` finds: a step's time for each number of ranks, and where its figures come from."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass, field

from runner.base.errors import UsageError
from runner.tools.costs.study import Study
from runner.tools.plan.layouts import Cluster
from runner.tools.plan.prediction import Prediction

UNCHECKED = 0.1  # the relative error that is assumed where no measured size has been predicted from others


@dataclass(frozen=True, kw_only=True)
class PredictedStep:
    """A row. ``hosts``: 0: not known. ``samples``: of all ranks per step; 0: not known. ``problem``: why there is no prediction."""

    scaling: str
    ranks: int
    hosts: int = 0
    layout: str = ""
    samples: float = 0.0
    prediction: Prediction | None = None
    problem: str = ""


@dataclass(kw_only=True)
class Outlook:
    """All rows.

    Attributes:
        assumptions: where each figure comes from, a line each.
        errors: of each size of the study, predicted from the others: scaling, ranks, and the relative error of the step's time.
        unit: what speeds count, of which a sample has so many.
    """

    steps: list[PredictedStep] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    errors: list[tuple[str, int, float]] = field(default_factory=list)
    unit: str = "samples"
    units_per_sample: int = 1

    def speed(self, step: PredictedStep, seconds: float) -> float:
        """Units per second of all ranks, if a step takes so long; steps per second where its samples are not known."""
        return (step.samples * self.units_per_sample or 1.0) / seconds


def grown(error: float, ranks: int, largest: int) -> float:
    """A relative error on so many ranks, if it was checked up to a largest size: as much again for each time that doubles."""
    return float((1 + error) ** max(1.0, math.log2(ranks / largest)) - 1)


def ranks_per_host(given: Namespace, study: Study | None, measured: int | None = None) -> int | None:
    """As it is said, else as the study, or else the links, were measured on several hosts; None: not known."""
    if given.ranks_per_node:
        return int(given.ranks_per_node)
    if given.gpus and given.nodes:
        return int(given.gpus // given.nodes)
    of_study = [size.ranks // size.hosts for size in study.sizes if size.hosts > 1] if study is not None else []
    return max(of_study, default=measured)


def cluster_of(ranks: int, each: int | None) -> Cluster:
    """Whole hosts with ``each`` ranks, or a part of one; None: up to 8.

    Raises:
        UsageError: the ranks do not fill whole hosts.
    """
    if each is None:
        return Cluster.of(ranks)
    if ranks > each and ranks % each:
        raise UsageError(f"{ranks} ranks do not fill hosts of {each}", fix="take another --ranks-per-node")
    return Cluster(gpus=ranks, hosts=max(1, ranks // each))
