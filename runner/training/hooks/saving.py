"""Checkpoints during a training, and its end by preemption."""

from __future__ import annotations

from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.hooks.metrics import MetricsHook
from runner.training.preemption import Preemption, Wish, end_early
from runner.training.run import Run


class SavingHook:
    """Called after each step but an epoch's last, and after each epoch and its evaluation. All methods are collective.

    Raises:
        Preempted: the training is to end early; it is saved.
    """

    def __init__(
        self,
        run: Run,
        position: Position,
        checkpoints: Checkpoints,
        preemption: Preemption,
        metrics: MetricsHook,
        last_step: int | None,
        agree_every: int,
    ) -> None:
        """``agree_every``: steps after which ranks agree on what is asked for, as the program may stop the training; 0: by time only."""
        self._agree_every = agree_every
        self._run, self._position, self._last_step = run, position, last_step
        self._checkpoints, self._preemption, self._metrics = checkpoints, preemption, metrics

    def after_step(self) -> None:
        self._checkpoints.see_step()
        every = self._agree_every
        wish = self._preemption.wish(now=every > 0 and self._position.step % every == 0)
        is_due = self._checkpoints.is_due(self._position) or wish.saves
        if is_due or wish.reason or self._preemption.is_stopped:  # each leads to a checkpoint
            self._metrics.write_rest()
        if is_due:
            wish = self._save()
        if wish.reason:
            end_early(self._run, self._checkpoints, self._position, wish.reason)

    def after_epoch(self, *, epoch_is_over: bool, is_evaluated: bool) -> None:
        """``epoch_is_over``: all of its steps are done, not only those that ``--max-steps`` allows."""
        self._checkpoints.see_step()
        is_due = self._checkpoints.is_due(self._position, epoch_is_over=epoch_is_over)
        wish = self._preemption.wish(now=True)
        if is_due or wish.saves:
            wish = self._save()
        position, options = self._position, self._checkpoints.options
        is_done = position.epoch >= options.epochs or position.step == self._last_step
        if wish.reason and not (is_done and is_evaluated):
            end_early(self._run, self._checkpoints, self._position, wish.reason)

    def _save(self) -> Wish:
        self._checkpoints.save(self._position)
        self._metrics.leave_out_pause()
        return self._preemption.wish(now=True)  # now it is known how long that takes
