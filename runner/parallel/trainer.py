"""The trainer that a strategy returns: the training loop's only interface to it."""

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
    """Trains a task on this rank, where every rank has the whole model. Strategies that divide the model derive from it.

    Attributes:
        model: whose parameters are trained; not wrapped, because the state uses its names.
        optimizer: of this rank's parameters.
        is_sharded: whether each rank has a part of the state, so that all ranks write and read a checkpoint. Otherwise all
            have the same state, and rank 0 does.
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
        """Train a model, or a wrapper around it.

        Args:
            wrapped: called in a training step instead of the model.
            no_sync: context of a backward pass that does not exchange the gradients yet.
        """
        self.task, self.model, self.optimizer, self.options = task, model, optimizer, options
        self._wrapped, self._no_sync = wrapped or model, no_sync

    def step(self, inputs: Tensor, targets: Tensor, check: Callable[[Tensor], None] | None = None) -> Tensor:
        """One step of the optimizer. Collective.

        Args:
            inputs: this rank's batch, computed in as many equal micro-batches as the options say.
            check: called with the loss before the optimizer steps; may raise.

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
        """Clip the gradients if asked for, and step the optimizer."""
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        self.optimizer.step()

    def outputs(self, inputs: Tensor) -> Tensor:
        """The model's outputs, for evaluation. All ranks make the same number of calls.

        The bare model is called, not DDP's wrapper, which would exchange buffers in each call.
        """
        outputs: Tensor = self.model(inputs)
        return outputs

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Broadcast rank 0's buffers: in training each rank keeps running statistics of its own batches. Collective."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.numel()]
        if not buffers:
            return
        # As bytes: one message for all dtypes, of which gloo does not support all.
        pieces = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers]
        whole = torch.cat(pieces)
        dist.broadcast(whole, src=0)
        for buffer, piece in zip(buffers, torch.split(whole, [piece.numel() for piece in pieces]), strict=True):
            buffer.copy_(piece.clone().view(buffer.dtype).view(buffer.shape))

    def state(self) -> State:
        """The state of model and optimizer by parameter name. If it is sharded, its tensors are DTensors."""
        return state_of(self.model, self.optimizer)

    def load(self, state: State) -> None:
        """Load a state; its tensors are this rank's parts."""
        load_state(self.model, self.optimizer, state)
