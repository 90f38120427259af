"""Hooks around the steps of the training loop, in their order. It is equal on all ranks, because many of them are collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from runner.parallel.modes import modes_kept
from runner.parallel.trainer import Trainer
from runner.training.evaluation_sums import Evaluation
from runner.training.hooks.evaluating import evaluate_epoch, evaluate_step
from runner.training.hooks.metrics import MetricsHook
from runner.training.hooks.saving import SavingHook
from runner.training.hooks.state import Hook, State
from runner.training.preemption import Preemption
from runner.training.replicas import Replicas
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The runner's own hooks, and the workload's."""

    run: Run
    options: Settings
    trainer: Trainer
    state: State
    metrics: MetricsHook
    replicas: Replicas | None
    preemption: Preemption
    saving: SavingHook
    see: Callable[[Evaluation | None], None]  # called with each evaluation; None: the training is to end before
    on_step: Sequence[Hook]
    on_epoch: Sequence[Hook]

    def after_step(self, loss: Tensor, *, is_last: bool) -> None:
        """A step is done; ``is_last``: of its epoch, so that metrics and checkpoints follow after the evaluation."""
        position, every = self.state.position, self.options.check_replicas
        self.metrics.add(loss)
        if self.on_step:
            self._call(self.on_step, "step hook")
        self.metrics.show_step()
        if self.replicas and every and position.step % every == 0:
            self.replicas.check(position.step)
        if not is_last:
            evaluate_every = self.trainer.task.evaluate_every
            if evaluate_every and position.step % evaluate_every == 0:
                self.see(evaluate_step(self.run, self.trainer, self.options, self.metrics, self.preemption))
            else:
                self.metrics.write_if_due(self.preemption)
            self.saving.after_step()

    @property
    def is_stopped(self) -> bool:
        """Whether a rank has asked for the end of the training, and all ranks know it."""
        return self.preemption.is_stopped

    def evaluate(self) -> Evaluation | None:
        """The steps of an epoch are done. Returns None if nothing was evaluated."""
        return evaluate_epoch(self.run, self.trainer, self.options, self.metrics, self.preemption)

    def after_epoch(self, *, epoch_is_over: bool, is_evaluated: bool) -> None:
        """The epoch's steps are evaluated; it may continue after a resume, if it is not over."""
        self._call(self.on_epoch, "epoch hook")
        self.saving.after_epoch(epoch_is_over=epoch_is_over, is_evaluated=is_evaluated)

    def _call(self, hooks: Sequence[Hook], phase: str) -> None:
        # A hook that evaluates may leave the model in evaluation mode; one that freezes a part means it.
        with self.run.job.board.during(phase), modes_kept(self.trainer.roots, if_evaluating=True):
            for hook in hooks:
                hook(self.state)
