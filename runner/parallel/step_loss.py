"""The loss of a step: the mean over its micro-batches and ranks, or the sum of all by the weight of all."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from runner.base.errors import UsageError
from runner.parallel.state import full_tensor
from runner.parallel.task import WeightedLoss
from runner.rendezvous.records.topology import ranks_text

_FORMS = "one number", "a pair (sum, weight)"
_FIX = "return one form for every batch on every rank"


class LossForm:
    """Whether a task's losses have weights: on all ranks and in all steps alike, as those that have are added up over the ranks."""

    def __init__(self) -> None:
        self._has_weight: bool | None = None
        self._is_compared = False

    def see(self, loss: WeightedLoss) -> None:
        """See the loss of a batch, and refuse another form than that of those before."""
        has_weight = loss.weight is not None
        if self._has_weight not in (None, has_weight):
            raise UsageError(
                f"the loss of a batch is {_FORMS[has_weight]}, and was {_FORMS[not has_weight]} in those before",
                fix=_FIX,
            )
        self._has_weight = has_weight

    def compare(self, group: dist.ProcessGroup | None, device: torch.device) -> bool:
        """Compare the form among the ranks, in the first step. Return whether this is it. Collective."""
        if self._is_compared:
            return False
        self._is_compared = True
        if not dist.is_initialized() or (size := dist.get_world_size(group)) == 1:
            return True
        forms = torch.zeros(size, dtype=torch.float64, device=device)
        forms[dist.get_rank(group)] = float(bool(self._has_weight))
        dist.all_reduce(forms, group=group)
        ranks = [dist.get_global_rank(group, one) if group is not None else one for one in range(size)]
        on = [[rank for rank, one in zip(ranks, forms.tolist(), strict=True) if one == form] for form in (0.0, 1.0)]
        if all(on):
            texts = [f"{form} on {ranks_text(having)}" for form, having in zip(_FORMS, on, strict=True)]
            raise UsageError(f"the loss of a batch is {' and '.join(texts)}", fix=_FIX)
        return True


class StepLoss:
    """Adds up the losses of a rank's micro-batches.

    Weights (tokens that count, samples of a short last batch) are known only after all forward passes. So the gradients are those of
    sums, divided by the usual number of samples to keep their magnitude; ``finished`` says by which factor they are to be multiplied.
    """

    def __init__(self, micro_batches: int, batch_size: int, form: LossForm, *, by_samples: bool = False) -> None:
        """Begin a step.

        Args:
            batch_size: samples of a rank in a usual step, the same on all ranks.
            form: of the training's losses.
            by_samples: this step is not a usual one: ranks have different numbers of samples, or none, by which means are weighted.
        """
        self._count, self._usual, self._form, self._by_samples = micro_batches, batch_size, form, by_samples
        self._losses: list[Tensor] = []
        self._weights: list[Tensor] = []
        self.weight = float(batch_size)  # of this rank's loss among the ranks', where it is this rank's own

    def add(self, loss: WeightedLoss, samples: float) -> Tensor:
        """Add a micro-batch's loss; returns what its gradients are computed of.

        Args:
            samples: in the micro-batch; 0 if it has one only so that all ranks compute.

        Raises:
            UsageError: the losses before had another form.
        """
        self._form.see(loss)
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

        Raises:
            UsageError: ranks have losses of different forms, or the weights make no mean.
        """
        # Before its first step a pipeline's schedule computes a loss of tensors without values, for shapes (torch 2.14).
        loss = torch.stack(self._losses[-self._count :]).sum()
        is_first = averages and self._form.compare(group, loss.device)
        if not self._weights:
            return loss, 1.0
        sums = torch.stack([loss, torch.stack(self._weights[-self._count :]).sum()])
        ranks = dist.get_world_size(group) if averages else 1
        if ranks > 1:
            dist.all_reduce(sums, group=group)
        total, weight = sums.tolist()
        self.weight = weight
        if not 0 <= weight < math.inf or (is_first and not weight):
            raise UsageError(
                f"the weights of {'all ranks' if averages else 'a batch'} add up to {weight:g}{' in the first step' if is_first else ''}",
                fix="return (sum, weight) with the number of what counts, such as tokens, of which a first batch has some",
            )
        if not weight:  # nothing in the whole batch counts
            return torch.zeros_like(loss), 0.0
        return loss.new_tensor(total / weight), self._usual * ranks / weight
