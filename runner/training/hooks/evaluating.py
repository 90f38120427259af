"""Evaluations in a training, after an epoch or in its middle, and the records of the last steps."""

from __future__ import annotations

from runner.parallel.trainer import Trainer
from runner.training.evaluation import evaluate
from runner.training.evaluation_sums import Evaluation
from runner.training.hooks.metrics import MetricsHook
from runner.training.metrics.sinks import StepRecord
from runner.training.preemption import Preemption
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import epoch_line, step_line


def evaluate_epoch(
    run: Run, trainer: Trainer, options: Settings, metrics: MetricsHook, preemption: Preemption
) -> Evaluation | None:
    """Evaluate, and write the records since the last ones, the last of them with the evaluation. Collective.

    Returns None if there is no test data, or the training is to end before the evaluation does.
    """
    evaluation, records = _evaluate(run, trainer, options, metrics, preemption)
    if records:
        metrics.show.line(epoch_line(options.epochs, records[-1], metrics.of_epoch, trainer.task))
    return evaluation


def evaluate_step(
    run: Run, trainer: Trainer, options: Settings, metrics: MetricsHook, preemption: Preemption
) -> Evaluation | None:
    """Evaluate in the middle of an epoch. Collective."""
    evaluation, records = _evaluate(run, trainer, options, metrics, preemption)
    if evaluation is not None:
        metrics.show.line(step_line(records[-1], trainer.task))
    metrics.leave_out_pause()
    run.job.board.enter("warm-up")  # a compiled model has been in evaluation mode
    return evaluation


def _evaluate(
    run: Run, trainer: Trainer, options: Settings, metrics: MetricsHook, preemption: Preemption
) -> tuple[Evaluation | None, list[StepRecord]]:
    records = metrics.gather(preemption)
    run.job.board.enter("evaluating")
    # It may take longer than the time that is left.
    is_over = preemption.wish(now=True).reason is not None
    evaluation = None if is_over else evaluate(run, trainer, options, preemption.ends)
    if records and evaluation:
        records[-1].val_loss, records[-1].val_accuracy = evaluation.loss, evaluation.accuracy
        records[-1].more |= {f"val_{name}": value for name, value in evaluation.metrics.items()}
    metrics.write(records)
    return evaluation, records
