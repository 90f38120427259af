"""A task in training on this rank: what a strategy returns, and all that the loop knows of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.parallel.options import ParallelOptions
from runner.parallel.state import State, load_state, state_of
from runner.parallel.task import Task


class Trainer:
    """A task in training on this rank, where every rank has the whole model. Strategies that divide it derive from this.

    Attributes:
        model: whose parameters are trained. State goes by its names, so it is not wrapped.
        optimizer: of this rank's parameters.
        is_sharded: whether each rank has a part of the state, so that all ranks write and read a checkpoint; else all have
            the same, and rank 0 does.
    """

    is_sharded = False

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: Optimizer,
        options: ParallelOptions,
        *,
        wrapped: nn.Module | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Train a model as it is, or as something has wrapped it.

        Args:
            wrapped: what is called in a training step in the model's place.
            no_sync: entered for a backward pass after which the gradients are not exchanged yet.
        """
        self.task, self.model, self.optimizer, self.options = task, model, optimizer, options
        self._wrapped, self._no_sync = wrapped or model, no_sync

    def step(self, inputs: Tensor, targets: Tensor, check: Callable[[Tensor], None] | None = None) -> Tensor:
        """One step of the optimizer. Collective.

        Args:
            inputs: this rank's batch, computed in as many equal parts as the options say.
            check: is given the loss before the optimizer steps, and may raise.

        Returns:
            The loss of this rank's batch, a detached scalar.
        """
        count = self.options.micro_batches
        self.optimizer.zero_grad()
        losses = []
        batches = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (micro_inputs, micro_targets) in enumerate(batches, 1):
            with nullcontext() if number == count else self._no_sync():
                loss = self.task.loss(self._wrapped(micro_inputs), micro_targets) / count
                torch.autograd.backward(loss)
            losses.append(loss.detach())
        whole = torch.stack(losses).sum()
        if check is not None:
            check(whole)
        self.update()
        return whole

    def update(self) -> None:
        """Clip the gradients where that is asked for, and let the optimizer step."""
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        self.optimizer.step()

    def outputs(self, inputs: Tensor) -> Tensor:
        """What the model makes of inputs in an evaluation. All ranks make the same number of calls.

        The bare model is called, not DDP's wrapper, which would exchange buffers in each call.
        """
        outputs: Tensor = self.model(inputs)
        return outputs

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Give all ranks rank 0's buffers: in training each keeps running statistics of its own batches. Collective."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.numel()]
        if not buffers:
            return
        # As bytes: one message whatever the types, and gloo does not know all of them.
        pieces = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers]
        whole = torch.cat(pieces)
        dist.broadcast(whole, src=0)
        for buffer, piece in zip(buffers, torch.split(whole, [piece.numel() for piece in pieces]), strict=True):
            buffer.copy_(piece.clone().view(buffer.dtype).view(buffer.shape))

    def state(self) -> State:
        """The state of model and optimizer by parameter name. Where it is sharded, its tensors are DTensors."""
        return state_of(self.model, self.optimizer)

    def load(self, state: State) -> None:
        """Take up a state, whose tensors are this rank's."""
        load_state(self.model, self.optimizer, state)
