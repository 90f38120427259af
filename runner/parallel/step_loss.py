"""The loss of a step: the mean over its micro-batches and ranks, or the sum of all by the weight of all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from runner.parallel.state import full_tensor
from runner.parallel.task import WeightedLoss


class StepLoss:
    """Adds up the losses of a rank's micro-batches.

    Weights (tokens that count, samples of a short last batch) are known only after all forward passes. So the gradients are those of
    sums, divided by the usual number of samples to keep their magnitude; ``finished`` says by which factor they are to be multiplied.
    """

    def __init__(self, micro_batches: int, batch_size: int, *, by_samples: bool = False) -> None:
        """Of a step with so many micro-batches.

        Args:
            batch_size: samples of a rank in a usual step, the same on all ranks.
            by_samples: this step is not a usual one: ranks have different numbers of samples, or none, by which means are weighted.
        """
        self._count, self._usual, self._by_samples = micro_batches, batch_size, by_samples
        self._losses: list[Tensor] = []
        self._weights: list[Tensor] = []

    def add(self, loss: WeightedLoss, samples: float) -> Tensor:
        """Add a micro-batch's loss; returns what its gradients are computed of.

        Args:
            samples: in the micro-batch; 0 if it has one only so that all ranks compute.
        """
        total, weight = loss
        if weight is None and self._by_samples:
            total, weight = total * samples, torch.full((), samples, dtype=torch.float64, device=total.device)
        elif weight is not None and not samples:
            total, weight = total * 0, weight * 0
        if weight is None:
            share = total / self._count
            self._losses.append(full_tensor(share.detach()))
            return share
        self._losses.append(full_tensor(total.detach()).double())
        self._weights.append(weight)
        return total / self._usual

    def finished(self, group: dist.ProcessGroup | None, *, averages: bool = True) -> tuple[Tensor, float]:
        """The step's loss, a detached scalar, and the factor of the gradients, which are averaged over the ranks. Collective.

        Args:
            group: of the data-parallel ranks.
            averages: whether their gradients are averaged; otherwise each trains by itself.

        Returns:
            With weights the loss of all ranks together, else this rank's.
        """
        # Before its first step a pipeline's schedule computes a loss of tensors without values, for shapes (torch 2.14).
        loss = torch.stack(self._losses[-self._count :]).sum()
        if not self._weights:
            return loss, 1.0
        sums = torch.stack([loss, torch.stack(self._weights[-self._count :]).sum()])
        ranks = dist.get_world_size(group) if averages else 1
        if ranks > 1:
            dist.all_reduce(sums, group=group)
        total, weight = sums.tolist()
        if not weight:  # nothing in the whole batch counts
            return torch.zeros_like(loss), 0.0
        return loss.new_tensor(total / weight), self._usual * ranks / weight
