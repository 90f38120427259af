"""How many bytes a rank sends in a step, and over which kind of link.

A group of ranks on several hosts counts as across hosts, as the slowest link of a ring sets its pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.tools.costs.collectives import all_reduce, reduce_scatter


@dataclass
class Traffic:
    """Bytes that a rank sends in a step, by what for.

    Attributes:
        within: over links within a host.
        across: over links between hosts.
        per_link: of these, over the link of one GPU: NCCL uses those of all GPUs that a group has on a host.
    """

    within: dict[str, float] = field(default_factory=dict)
    across: dict[str, float] = field(default_factory=dict)
    per_link: float = 0.0

    def add(self, purpose: str, number: float, links: int) -> None:
        """Count some bytes, to other hosts by so many links, or, by none, within a host."""
        if number:
            kind = self.across if links else self.within
            kind[purpose] = kind.get(purpose, 0.0) + number
            self.per_link += number / links if links else 0.0

    @property
    def total(self) -> float:
        return total(self.within) + total(self.across)


def total(parts: Mapping[str, float]) -> float:
    """Of all purposes."""
    return sum(parts.values())


def replicated(gradients: float, ranks: int) -> float:
    """DDP: an all-reduce of all gradients (Li et al., "PyTorch Distributed", arXiv:2006.15704)."""
    return all_reduce(gradients, ranks)


def optimizer_sharded(gradients: float, parameters: float, ranks: int) -> float:
    """ZeRO-1 as torch has it: DDP's all-reduce, then each rank broadcasts the parameters that it has updated.

    (Rajbhandari et al., "ZeRO", arXiv:1910.02054, whose own reduces once to the owner.)
    """
    return all_reduce(gradients, ranks) + (ranks - 1) / ranks * parameters


def sharded(gradients: float, parameters: float, ranks: int, gathers: int, scatters: int) -> float:
    """FSDP: ``gathers`` all-gathers of the parameters, ``scatters`` reduce-scatters of the gradients.

    Two and one for each micro-batch, as forward and backward pass each gather (Zhao et al., "PyTorch FSDP", arXiv:2304.11277);
    in a pipeline one each for all micro-batches, as a stage keeps what it has gathered and summed.
    """
    return gathers * (ranks - 1) / ranks * parameters + scatters * reduce_scatter(gradients, ranks)


def handed_on(outputs: float, micro_batches: int) -> float:
    """Pipeline: a stage's outputs forward, or its inputs' gradients backward, once per micro-batch."""
    return outputs * micro_batches
