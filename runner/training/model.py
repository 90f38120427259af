"""A model in a loop of one's own: ``run.prepare()`` makes it, by any strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.job import Job
from runner.parallel.batch_forms import form_of
from runner.parallel.modes import evaluation_mode
from runner.parallel.precision import widened
from runner.parallel.state import full_tensor
from runner.parallel.trainer import Trainer
from runner.parallel.trees import map_tensors


class Model:
    """A model that trains on all ranks. Call it as the module itself; then ``backward(loss)`` and ``step()``.

    Attributes:
        name: its own among the models of the script.
        trainer: by which the strategy trains it.
        has_gradients: whether there was a ``backward()`` since the last ``step()``.
    """

    def __init__(
        self,
        name: str,
        trainer: Trainer,
        job: Job,
        noted: Callable[[Tensor], None],
        check: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Made by ``Run.prepare``.

        Args:
            job: whose guard is told of each backward pass, and of each batch that is evaluated.
            noted: called with the loss of each backward pass.
            check: called with the newest of them before the optimizer steps; may raise.
        """
        self.name, self.trainer, self._board, self._noted, self._check = name, trainer, job.board, noted, check
        trainer.on_progress = self._board.go_on
        self._loss: Tensor  # of the newest backward pass
        self.has_gradients = False
        self._is_frozen = False

    if not TYPE_CHECKING:  # a type checker names what is missing itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a prepared model has no {name}: it trains by model(…), which calls the module's forward(); "
                "with model.evaluating() as predict: … is its evaluation, and model.module the module, to look at"
            )

    @property
    def module(self) -> nn.Module:
        """The module itself, with this rank's parameters: a shard of each under ``fsdp``, its layers under ``pp``."""
        return self.trainer.model

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of this rank's parameters."""
        return self.trainer.optimizer

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's outputs. In training mode all ranks call it equally often.

        Returns:
            Tensors of the whole outputs of this rank's batch, in float32 where ``--precision`` computes in a smaller type.

        Raises:
            UsageError: pipeline parallelism, whose step is its schedule's: ``train_step`` computes it.
        """
        trainer = self.trainer
        if trainer.pipeline is not None:
            with raised_on_all_ranks():
                raise UsageError(
                    "a model in a pipeline cannot be called: its schedule calls the stages",
                    fix="give prepare() the loss, and call model.train_step(inputs, targets)",
                )
        outputs = self._outputs(*inputs, **named) if self._is_frozen else trainer.forward(*inputs, **named)
        return self._as_users_have_it(outputs)

    def backward(self, loss: Tensor) -> None:
        """Compute this model's gradients, averaged over the data-parallel ranks. Collective.

        The first call after a step begins with gradients of zero; further ones add up. A loss of several models gives gradients to
        all of them, of which the others' are thrown away.

        Args:
            loss: the mean over this rank's batch, a scalar.

        Raises:
            UsageError: it is none, or needs no gradient.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UsageError(
                f"the loss of {self.name} is {form_of(loss)}{'' if isinstance(loss, Tensor) and loss.requires_grad else ', without a gradient'}",
                fix="make it one number, for example by .mean(), that was computed by the model",
            )
        if not self.has_gradients:
            self.trainer.optimizer.zero_grad()
            self.has_gradients = True
        self.trainer.backward_from(loss)
        self._board.go_on()
        self._loss = loss.detach()
        self._noted(self._loss)

    def step(self) -> None:
        """Clip the gradients if the settings say so, and step the optimizer. Collective.

        Raises:
            UsageError: there was no ``backward()`` since the last step.
            RunnerError: with ``--check-finite``, the loss or a gradient is not finite on some rank.
        """
        if not self.has_gradients:
            raise UsageError(
                f"step() of {self.name} without backward() before",
                fix="call model.backward(loss) first, in the place of loss.backward()",
            )
        self.trainer.finish_gradients()
        if self._check is not None:
            self._check(self._loss)
        self.trainer.update()
        self.has_gradients = False

    def train_step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """A whole step by the loss that ``prepare()`` was given, in micro-batches if the settings say so. Collective.

        It is the step of ``run.fit``, and the only one that a pipeline has.

        Args:
            inputs: of this rank's batch: [batch, …].
            targets: the same number of them.

        Returns:
            The loss of the batch, a detached scalar; the same on all stages.
        """
        loss = self.trainer.step((inputs, targets), self._check)
        self._noted(loss)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The whole model's parameters and buffers by name, on all ranks, as the module without a strategy has them. Collective.

        For ``torch.save`` on rank 0, or a copy of the model that is not trained. Under ``fsdp`` and ``tp`` they are gathered, under
        ``local-sgd`` averaged; buffers are rank 0's.

        Raises:
            UsageError: pipeline parallelism, where a rank has its own layers only.
        """
        if self.trainer.pipeline is not None:
            with raised_on_all_ranks():
                raise UsageError(
                    "state_dict() of a model in a pipeline: a rank has its own layers only",
                    fix="make the file of a checkpoint: python -m runner checkpoint export",
                )
        self.trainer.share_buffers()
        return {name: map_tensors(full_tensor, value) for name, value in self.module.state_dict().items()}

    def accumulate(self) -> AbstractContextManager[Any]:
        """Return the context of forward and backward passes that are not the last before ``step()``: ranks exchange no whole gradients yet."""
        return self.trainer.no_sync()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A context in which the model is called and not trained, as a GAN's discriminator in the generator's step.

        Gradients flow through it, and its own parameters get none.
        """
        trained = [one for one in self.module.parameters() if one.requires_grad]
        for one in trained:
            one.requires_grad_(False)
        self._is_frozen = True
        try:
            yield
        finally:
            self._is_frozen = False
            for one in trained:
                one.requires_grad_(True)

    @contextmanager
    def evaluating(self) -> Iterator[Callable[..., Any]]:
        """A context in evaluation mode and without gradients, which gives a function like the model. Collective.

        All ranks evaluate rank 0's buffers, such as BatchNorm's statistics, and under ``local-sgd`` the average of their weights.
        They make the same number of calls; under ``pp`` the function takes one tensor. Each module has its own mode afterwards.
        """
        self.trainer.share_buffers()
        try:
            with torch.no_grad(), evaluation_mode(self.trainer.roots), self._board.during("evaluating"):
                self._board.enter("warm-up")  # the first batch may compile
                yield self._evaluated
        finally:
            self.trainer.outputs_are_over()

    def _evaluated(self, *inputs: Any, **named: Any) -> Any:
        outputs = self._as_users_have_it(self._outputs(*inputs, **named))
        self._board.enter("evaluating")
        return outputs

    def _outputs(self, *inputs: Any, **named: Any) -> Any:
        if self.trainer.pipeline is not None:
            return self.trainer.outputs(*inputs, **named)
        with self.trainer.computing():
            return self.trainer.model(*inputs, **named)

    def _as_users_have_it(self, outputs: Any) -> Any:
        return map_tensors(widened(self.trainer.options.precision), map_tensors(full_tensor, outputs))
