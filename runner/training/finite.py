"""Whether a training still makes sense: its losses and its weights are finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.base.errors import RunnerError, raised_on_all_ranks
from runner.parallel.gradients import own_gradients
from runner.parallel.state import local_tensor
from runner.parallel.trainer import Trainer
from runner.rendezvous.records.topology import ranks_text
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.metrics.sinks import StepRecord
from runner.training.run import Run
from runner.versions.torch_private import norms_of

_FIX = "take a smaller --lr, clip the gradients (--clip-norm 1), or look at the data of that step"


class Finite:
    """Watches the losses that are written anyway, and looks at the weights when it is asked."""

    def __init__(self, model: nn.Module) -> None:
        """Call it before the first step. A weight that is not finite then is left out: memory that nothing initialises or uses."""
        self._model = model
        self._left_out = set(_odd_weights(model))
        self._odd: dict[str, str] = {}  # which loss is not finite in the newest record, and since which step

    def take(self, records: Iterable[StepRecord]) -> None:
        """Take the records of the newest steps."""
        for record in records:
            for name, loss in (("loss", record.loss), ("test loss", record.val_loss)):
                if loss is not None and math.isfinite(loss):
                    self._odd.pop(name, None)
                elif loss is not None:
                    since = f"since step {record.step}, in epoch {record.epoch}"
                    self._odd.setdefault(name, f"the {name} is {loss} {since}")

    def what_is_odd(self) -> str:
        """Describe which loss is not finite, and since which step; return "" if the newest losses are finite. Equal on all ranks."""
        return next(iter(self._odd.values()), "")

    def has_odd_weights(self) -> bool:
        """Whether a weight that is trained, or this rank's shard of one, is no longer finite."""
        return any(name not in self._left_out for name in _odd_weights(self._model))


@torch.no_grad()
def _odd_weights(model: nn.Module) -> list[str]:
    """The parameters that are trained and not finite, by name, as far as they are on this rank."""
    shards = {name: local_tensor(one) for name, one in model.named_parameters() if one.requires_grad}
    shards = {name: shard for name, shard in shards.items() if shard.numel() and shard.layout == torch.strided}
    largest = norms_of(list(shards.values()), math.inf) if shards else []  # a sum of squares may overflow
    return [name for name, one in zip(shards, largest, strict=True) if not math.isfinite(one)]


def check_finite(run: Run, trainer: Trainer, position: Position, loss: Tensor) -> None:
    """Raise on all ranks if the loss or a gradient on any of them is not finite. Collective.

    Gradients that a scaler (fp16) finds infinite are its own business. Those of data-parallel ranks are averaged by now, so
    that the rank is not known whose were odd.
    """
    gradients = own_gradients(trainer.model) if trainer.scaler is None else {}
    norms = [norm.double() for norm in norms_of(list(gradients.values()))] if gradients else []
    own_norm = float(torch.stack(norms).sum()) if norms else 0.0
    if all(map(math.isfinite, run.sum(float(loss), own_norm, dimension=None))):
        return
    odd_gradients = (name for name, norm in zip(gradients, norms, strict=True) if not math.isfinite(norm))
    everyone: list[Any] = [None] * run.size
    dist.all_gather_object(everyone, (float(loss), next(odd_gradients, None)))
    odd = {rank: one for rank, (one, _) in enumerate(everyone) if not math.isfinite(one)}
    place = f"at step {position.step + 1}, in epoch {position.epoch + 1}"
    if odd:
        hosts = dict.fromkeys(run.job.topology.records[rank].host for rank in odd)
        what = f"the loss is {next(iter(odd.values()))} on {ranks_text([*odd])} {place} (host {', '.join(hosts)})"
    else:
        name = next((name for _, name in everyone if name is not None), "a parameter")
        what = f"the gradient of {name} is not finite {place}"
    with raised_on_all_ranks():
        raise RunnerError(f"--check-finite: {what}", fix=_FIX)
