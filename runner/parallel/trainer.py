"""The trainer that a strategy returns: the training loop's only interface to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import precision
from runner.parallel.batch_forms import micro_batches
from runner.parallel.gradients import clip_gradients, own_gradients
from runner.parallel.same_start import broadcast, check_digests, digest_of
from runner.parallel.settings import ParallelSettings
from runner.parallel.state import (
    NO_COPIES,
    StateDict,
    copy_shard,
    full_tensor,
    load_state,
    room_for,
    shapes_of,
    state_of,
)
from runner.parallel.step_loss import LossForm, StepLoss
from runner.parallel.support import described, is_about_the_model
from runner.parallel.task import Stateful, Task, lacks_argument
from runner.parallel.trees import map_tensors
from runner.versions.torch_private import multiply, overflows

_SAME_WEIGHTS = "let every rank read the same file"


class Trainer:
    """Trains a task on this rank, where every rank has the full model. Strategies that shard the model derive from it.

    Attributes:
        model: whose parameters are trained; not wrapped, because the state uses its names.
        optimizer: of this rank's parameters.
        dtype: of floating-point inputs, see ``precision.of_inputs``; None leaves them as they are.
        is_sharded: whether each rank has a shard of the state, so that all ranks write and read a checkpoint. Otherwise all
            have the same state, and rank 0 does.
        averages: whether the gradients are averaged over the data-parallel ranks in each step.
        period: steps from one average of the replicas to the next; between them they differ, if it is more than one.
        copies: the names of copies of parameters that another pipeline stage has, with the names there; of the full model.
        weight: of the last step's loss in a mean over the ranks, which counts where they do not average their gradients.
        left_out: why the newest ``state()`` lacks a part that the script has registered.
        own: what the program saves beside the model, by name.
        on_progress: called when a micro-batch is done, or a part of it.
        ready: when this rank had done of the step what needs no other one (time.perf_counter()); None if it is not known.
    """

    is_sharded = False
    averages = True
    period = 1
    copies: Mapping[str, str] = NO_COPIES
    weight = 1.0
    own: Mapping[str, Stateful] = {}
    on_progress: Callable[[], None] = staticmethod(lambda: None)
    left_out: UsageError | None = None
    ready: float | None = None
    pipeline: dist.ProcessGroup | None = None  # the ranks that have the model's other stages, if any
    replicas: dist.ProcessGroup | None = None  # the ranks that have the same buffers; None: all
    sends_from: torch.device | None = None  # what the default group takes tensors from; None: where the parameters are

    def __init__(self, task: Task, model: nn.Module, optimizer: Optimizer, options: ParallelSettings) -> None:
        self.task, self.model, self.optimizer, self.options = task, model, optimizer, options
        precision.check(model, options.precision)
        self.dtype = precision.of_inputs(model)
        self._device, self._has_stepped = next(model.parameters()).device.type, False
        # It scales the loss so that small gradients are not 0, and leaves out steps whose gradients are infinite.
        self.scaler = torch.amp.GradScaler(self._device) if options.precision == "fp16" else None
        self._batch_size: int = getattr(options, "batch_size", 1)  # a rank's, which workloads' settings have
        self._form = LossForm()
        self._factor = 1.0  # of the gradients, up to the optimizer's step

    @property
    def roots(self) -> list[nn.Module]:
        """The modules that are called, and so have a mode: the model, or this rank's stages of it too."""
        return [self.model]

    @property
    def wrapped(self) -> nn.Module:
        """The module that a training step calls in the place of the model."""
        return self.model

    @property
    def local_optimizer(self) -> Optimizer:
        """The optimizer of this rank's parameters, whose state a checkpoint has."""
        return self.optimizer

    def step(self, batch: Any, check: Callable[[Tensor], None] | None = None, *, samples: int | None = None) -> Tensor:
        """Do one step of the optimizer. Collective.

        Args:
            batch: this rank's, as the task's loss takes it; computed in as many micro-batches as the options say.
            check: called with the loss before the optimizer steps; may raise.
            samples: of a short last batch, on all ranks: how many of its samples count, 0 where a rank has none of its own.

        Returns:
            The loss, a detached scalar: of this rank's batch, or of all ranks' where the task's losses have weights.
        """
        self.optimizer.zero_grad()
        loss = self.backward(batch, samples)
        self.finish_gradients()
        if check is not None:
            check(loss)
        self.update()
        return loss

    def backward(self, batch: Any, samples: int | None = None) -> Tensor:
        """Compute the gradients of this rank's batch, averaged over the data-parallel ranks, up to ``update``. Returns the loss."""
        count = self.options.micro_batches
        step = StepLoss(count, self._batch_size, self._form, by_samples=samples is not None)
        parts = micro_batches(batch, count)
        # How many samples a batch has its tensors need not tell.
        share = 1.0 if samples is None else samples / sum(length for _, length in parts)
        for number, (micro_batch, length) in enumerate(parts, 1):
            with nullcontext() if number == count else self.no_sync(), self.loss_context():
                with self.computing():
                    loss = step.add(self.task.loss_of(self.wrapped, micro_batch), length * share)
                self.backward_from(loss)
            self.on_progress()
        return self._finish(step)

    def _finish(self, step: StepLoss) -> Tensor:
        """A step's loss. Collective in the first step, and where it has weights."""
        is_everywhere = self.averages and self.pipeline is None  # other stages do not come here
        with raised_on_all_ranks() if is_everywhere else nullcontext():
            loss, self._factor = step.finished(self.replicas, averages=self.averages)
        return loss

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's outputs in a training step, by the strategy's wrapper and in its precision."""
        with self.computing():
            return self.wrapped(*inputs, **named)

    def backward_from(self, loss: Tensor) -> None:
        """Compute gradients from a loss; several calls add up."""
        self.ready = time.perf_counter()
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))

    def no_sync(self) -> AbstractContextManager[Any]:
        """The context of forward and backward passes whose gradients are not exchanged yet."""
        return nullcontext()

    def finish_gradients(self) -> None:
        """Refuse gradients that are not those of all ranks, after the last backward pass of a step. Collective."""

    def update(self) -> None:
        """Clip the gradients if asked for, and step the optimizer."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
            if self.is_sharded:
                self._agree_on_overflow(self.scaler)
        self.weigh()
        if self.options.clip_norm is not None:
            copies = [parameter for name, parameter in self.model.named_parameters() if name in self.copies]
            clip_gradients(self.model.parameters(), self.options.clip_norm, self.pipeline, copies)
        with self._step_errors():
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
        if self.scaler is not None:
            self.scaler.update()
        self._has_stepped = True

    @torch.no_grad()
    def weigh(self) -> None:
        """Multiply the gradients by the factor that the weights of the step's losses give, if they have some."""
        if self._factor != 1.0 and (gradients := [*own_gradients(self.model).values()]):
            multiply(gradients, self._factor)
        self._factor = 1.0

    @contextmanager
    def _step_errors(self) -> Iterator[None]:
        """Refuse an optimizer that asks for a closure, or in its first step what it cannot train."""
        try:
            yield
        except Exception as error:
            if "closure" in str(error).lower():
                raise lacks_argument(self.optimizer, "a closure") from error
            if self._has_stepped or not is_about_the_model(error):
                raise
            raise UsageError(
                f"{type(self.optimizer).__name__} cannot step these parameters ({described(error)})",
                fix="take another optimizer",
            ) from error

    def _agree_on_overflow(self, scaler: torch.amp.GradScaler) -> None:
        """Let a step that overflows in one shard of the model be skipped for all of it."""
        device = next(self.model.parameters()).device
        # A rank has no flag where no parameter of its shard has a gradient.
        flags = overflows(scaler, self.optimizer)
        found = flags.setdefault(device, torch.zeros((), dtype=torch.float32, device=device))
        everywhere = found.to(self.sends_from or device)
        dist.all_reduce(everywhere, dist.ReduceOp.MAX)
        found.copy_(everywhere)

    def computing(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return precision.autocast(self.options.precision, self._device)

    def loss_context(self) -> AbstractContextManager[Any]:
        """The context of a forward and a backward pass."""
        return nullcontext()

    def outputs(self, *inputs: Any, **named: Any) -> Any:
        """The model's outputs, for evaluation. All ranks make the same number of calls.

        The bare model is called, not DDP's wrapper, which would exchange buffers in each call. In a pipeline the first of
        the model's arguments goes through the stages; each stage gets the others.
        """
        with self.computing():
            return map_tensors(full_tensor, self.model(*inputs, **named))

    def outputs_are_over(self) -> None:
        """Let the model's parameters be the optimizer's again, after calls of ``outputs``. Collective."""

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load the model's weights, and nothing of the optimizer. Every rank takes its shard of each tensor.

        Raises:
            UsageError: a name or shape is not the model's, or one is missing, or the ranks have been given other values.
        """
        places, expected = self.model.state_dict(keep_vars=True), self.shapes()
        missing, digests = set(expected), dict.fromkeys(sorted(expected), torch.zeros((), dtype=torch.int64))
        for name, tensor in weights:
            if expected.get(name) != tuple(tensor.shape):
                here = f"is {list(expected[name])}" if name in expected else "does not exist"
                with raised_on_all_ranks():
                    raise UsageError(
                        f"{name} is {list(tensor.shape)} in the weights, and here it {here}", fix="take the same model"
                    )
            if name in places and tensor.is_complex() and not places[name].is_complex():
                with raised_on_all_ranks():
                    raise UsageError(
                        f"{name} is complex in the weights, and here it is real", fix="take the same model"
                    )
            missing.discard(name)
            digests[name] = digest_of(tensor)
            for place in (name, *(copy for copy, first in self.copies.items() if first == name)):
                if place in places:
                    copy_shard(tensor.to(places[place].device, places[place].dtype), places[place])
        tied = {
            name for name in missing if id(places.get(name)) in {id(places[one]) for one in places.keys() - missing}
        }
        tied |= {copy for copy, first in self.copies.items() if first not in missing}
        if missing - tied:
            with raised_on_all_ranks():
                raise UsageError(f"the weights have no {min(missing - tied)}", fix="take those of the same model")
        check_digests([*digests.items()], "the weights", _SAME_WEIGHTS)

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Broadcast rank 0's buffers: in training each rank keeps running statistics of its own batches. Collective."""
        buffers = [*self.model.buffers()]
        if not buffers:
            return
        broadcast(buffers, buffers[0].device, self.replicas)

    def state(self) -> StateDict:
        """The state of model and optimizer by parameter name. If it is sharded, its tensors are this rank's.

        Groups and values are those of all ranks. Collective.
        """
        state = state_of(self.model, self.local_optimizer, self.copies)
        if self.scaler is not None:
            state.values["scaler"] = self.scaler.state_dict()
        return state

    def check_state(self) -> None:
        """Refuse a state that a checkpoint cannot hold; optimizers make their part of it in the first step."""
        state_of(self.model, self.local_optimizer, self.copies)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the full model's parameters and buffers, by name, wherever they are. Collective."""
        return shapes_of(self.model)

    def room(
        self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], everywhere: Collection[str]
    ) -> dict[str, Tensor]:
        """Tensors to read a state into, with arguments as ``room_for`` has them."""
        return room_for(self.model, shapes, everywhere, self.copies)

    def load(self, state: StateDict) -> None:
        """Load a state; its tensors are this rank's shards."""
        load_state(self.model, self.local_optimizer, state, self.copies)
        if self.scaler is not None and state.values.get("scaler"):
            self.scaler.load_state_dict(state.values["scaler"])
