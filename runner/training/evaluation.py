"""The evaluation of a model in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from runner.parallel.task import to_device
from runner.parallel.trainer import Trainer
from runner.training.batches import evaluation_batches, evaluation_loader, length_of
from runner.training.options import TrainingOptions
from runner.training.run import Run

Evaluation = tuple[float, float | None]


def evaluate(
    run: Run, trainer: Trainer, options: TrainingOptions, is_over: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """(mean loss, accuracy) over the test data, every sample counted once; None if there is no test data. Collective.

    Leaves the model in evaluation mode. All ranks make the same number of calls, because a sharded model needs all of them:
    a rank with fewer batches than others, or with none, computes one that is not counted.

    Args:
        is_over: whether to leave the evaluation, and return None. Called after batches that all ranks have.
    """
    with run.job.board.during(
        "evaluating"
    ):  # after it a program may end: it is in no training, if it was in none before
        return _evaluate(run, trainer, options, is_over)


@torch.no_grad()
def _evaluate(run: Run, trainer: Trainer, options: TrainingOptions, is_over: Callable[[], bool]) -> Evaluation | None:
    task = trainer.task
    if task.test_data is None:
        return None
    trainer.share_buffers()
    batch_size = max(options.batch_size, 256 // task.units_per_sample)
    loader: DataLoader[Any] = evaluation_loader(task.test_data, run.data_rank, run.data_size, batch_size)
    fewest, calls = evaluation_batches(length_of(task.test_data), run.data_size, batch_size)
    trainer.model.eval()
    dtype = getattr(torch, options.dtype)
    loss_sum, correct, count = 0.0, 0, 0
    for number, batch in enumerate(loader, 1):
        inputs, targets = to_device(batch[0], batch[1], run.device, dtype)
        outputs = trainer.outputs(inputs)
        run.job.board.enter("evaluating")
        loss_sum += task.loss(outputs, targets).item() * len(targets)
        if task.is_classification:
            correct += int((outputs.argmax(dim=1) == targets).sum())
        count += len(targets)
        if number <= fewest and is_over():
            return None
    if trainer.is_sharded and len(loader) < calls:
        extra = next(iter(evaluation_loader(task.test_data, 0, 1, 1)))
        trainer.outputs(to_device(extra[0], extra[1], run.device, dtype)[0])
    loss_sum, hits, total = run.sum(loss_sum, correct, count)
    return loss_sum / total, hits / total if task.is_classification else None
