"""The evaluation of a model in training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from runner.base.errors import raised_on_all_ranks
from runner.parallel.batch_forms import form_of
from runner.parallel.modes import evaluation_mode
from runner.parallel.task import Best
from runner.parallel.trainer import Trainer
from runner.parallel.trees import length_of_batch, tensors_in, to_device
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import source_of, source_of_test
from runner.training.evaluation_sums import Evaluation, EvaluationSums, best_number, computed, hits
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import COMPILER


@torch.no_grad()
def evaluate(
    run: Run, trainer: Trainer, options: Settings, is_over: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """Return the mean loss over the test data, accuracy and metrics; None if there is no test data. Collective.

    Every sample that the test data or its loader gives counts once. All ranks make the same number of calls, because a sharded model
    needs all of them: a rank that has no samples in a step computes a batch that does not count.

    Args:
        is_over: whether to leave the evaluation, and return None. Called after each batch.
    """
    task, board = trainer.task, run.job.board
    if task.test_data is None:
        return None
    sums = EvaluationSums(task, run)
    known = set[object]()  # shapes: the first batch of each may have the model compiled
    with board.during("evaluating"), evaluation_mode(trainer.roots):
        trainer.share_buffers()
        source = source_of_test(task)
        feed = feed_of(run, source, with_batch_of(source, replace(options, given={})), beside=source_of(task))
        board.enter("warm-up")
        for batch in feed.batches(0, 0):
            here = to_device(batch.value, run.device, trainer.dtype)
            shapes = tuple(tensor.shape for tensor in tensors_in(here))
            if shapes not in known:
                known.add(shapes)
                board.enter("warm-up")
            found = computed(trainer, here)
            board.enter("evaluating")
            if batch.samples:
                sums.add(found, batch.samples)
            if is_over():
                evaluation = None
                break
        else:
            evaluation = sums.evaluation()
        trainer.outputs_are_over()
        return evaluation


@torch.no_grad()
@raised_on_all_ranks()
def try_evaluation(run: Run, trainer: Trainer, batch: Any) -> None:
    """Evaluate some samples before the training, so that what fails does so now, and not after an epoch. Collective.

    Weights, buffers and random numbers stay as they are. Rank 0 says if no accuracy can be computed.

    Args:
        batch: the same on all ranks.

    Raises:
        UsageError: the loss is no number.
    """
    task = trainer.task
    here = to_device(batch, run.device, trainer.dtype)
    with own_random_numbers("a first evaluation", run.device), _evaluated(trainer):
        _, outputs, targets = found = computed(trainer, here)
        sums = EvaluationSums(task, run)
        sums.add(found, length_of_batch(here) or 1)
        evaluation = sums.evaluation()
        if task.keep_best is not None:
            best_number(evaluation, Best.of(task.keep_best))
    trainer.outputs_are_over()
    if task.is_classification and task.batch_loss is None and hits(outputs, targets) is None:
        run.print(
            f"accuracy n/a: the outputs are {form_of(outputs)} and the targets {form_of(targets)}; it needs outputs "
            "[batch, classes, …] and class numbers [batch, …]"
        )


@contextmanager
def _evaluated(trainer: Trainer) -> Iterator[None]:
    """Run the model in evaluation mode, not compiled: from so few samples the compiler would learn the wrong shapes."""
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in trainer.model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    is_compiled = COMPILER in sys.modules  # whose import takes a second
    try:
        with evaluation_mode(trainer.roots), not_compiled() if is_compiled else nullcontext():
            yield
    finally:
        for module, name, buffer, before in buffers:
            setattr(module, name, buffer.copy_(before))
