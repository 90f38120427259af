"""The evaluation of a model in training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from runner.base.errors import raised_on_all_ranks
from runner.parallel.task import form_of, parts_of, to_device
from runner.parallel.trainer import Trainer
from runner.training.data.batches import evaluation_batches, evaluation_loader, length_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import COMPILER

Evaluation = tuple[float, float | None]


def evaluate(
    run: Run, trainer: Trainer, options: Settings, is_over: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """(mean loss, accuracy) over the test data, every sample counted once; None if there is no test data. Collective.

    The accuracy is None if there are no classes to count: see ``hits``.

    Leaves the model in evaluation mode. All ranks make the same number of calls, because a sharded model needs all of them:
    a rank with fewer batches than others, or with none, computes one that is not counted.

    Args:
        is_over: whether to leave the evaluation, and return None. Called after batches that all ranks have.
    """
    with run.job.board.during(
        "evaluating"
    ):  # after it a program may end: it is in no training, if it was in none before
        evaluation = _evaluate(run, trainer, options, is_over)
        trainer.outputs_are_over()
        return evaluation


@torch.no_grad()
def _evaluate(run: Run, trainer: Trainer, options: Settings, is_over: Callable[[], bool]) -> Evaluation | None:
    task = trainer.task
    if task.test_data is None:
        return None
    trainer.share_buffers()
    batch_size = max(options.batch_size, 256 // task.units_per_sample)
    loader = evaluation_loader(task.test_data, run.data_rank, run.data_size, batch_size)
    fewest, calls = evaluation_batches(length_of(task.test_data), run.data_size, batch_size)
    trainer.model.eval()
    dtype = getattr(torch, options.dtype)
    loss_sum, count, correct, classified, uncounted = 0.0, 0, 0, 0, 0
    known = set[object]()  # shapes: the first batch of each may have the model compiled
    run.job.board.enter("warm-up")
    for number, batch in enumerate(loader, 1):
        inputs, targets = to_device(*parts_of(batch), run.device, dtype)
        if inputs.shape not in known:
            known.add(inputs.shape)
            run.job.board.enter("warm-up")
        outputs = trainer.outputs(inputs)
        run.job.board.enter("evaluating")
        loss_sum += task.mean_loss(outputs, targets).item() * len(targets)
        count += len(targets)
        if task.is_classification:
            counted = hits(outputs, targets)
            uncounted += counted is None
            right, predictions = counted or (0, 0)
            correct, classified = correct + right, classified + predictions
        if number <= fewest and is_over():
            return None
    if trainer.is_sharded and len(loader) < calls:
        extra = next(iter(evaluation_loader(task.test_data, 0, 1, 1)))
        trainer.outputs(to_device(*parts_of(extra), run.device, dtype)[0])
    loss, samples, all_right, all_predictions, all_without = run.sum(loss_sum, count, correct, classified, uncounted)
    return loss / samples, all_right / all_predictions if all_predictions and not all_without else None


def hits(outputs: Any, targets: Tensor) -> tuple[int, int] | None:
    """How many predictions are right, and how many there are; None if these are no classes.

    Args:
        outputs: [batch, classes, …]: the largest is the prediction, for each sample, pixel or token.
        targets: [batch, …] class numbers, integers. Those that are no class (padding, ``ignore_index``) do not count.
    """
    is_whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if not is_whole or not isinstance(outputs, Tensor) or outputs.dim() < 2 or outputs.is_complex():
        return None
    classes = outputs.shape[1]
    if classes < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return None
    right = int((outputs.argmax(dim=1) == targets).sum())
    return right, int(((targets >= 0) & (targets < classes)).sum())


@torch.no_grad()
@raised_on_all_ranks()
def try_evaluation(run: Run, trainer: Trainer, options: Settings, batch: tuple[Tensor, Tensor]) -> None:
    """Evaluate some samples before the training, so that what fails does so now, and not after an epoch. Collective.

    Weights, buffers and random numbers stay as they are. Rank 0 says if no accuracy can be computed.

    Args:
        batch: the same on all ranks.

    Raises:
        UsageError: the loss is no number.
    """
    task = trainer.task
    inputs, targets = to_device(*batch, run.device, getattr(torch, options.dtype))
    with own_random_numbers("a first evaluation", run.device), _evaluated(trainer.model):
        outputs = trainer.outputs(inputs)
        task.mean_loss(outputs, targets)
    trainer.outputs_are_over()
    if task.is_classification and hits(outputs, targets) is None:
        run.print(
            f"accuracy n/a: the outputs are {form_of(outputs)} and the targets {form_of(targets)}; it needs outputs "
            "[batch, classes, …] and class numbers [batch, …]"
        )


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, and not compiled: from so few samples the compiler would learn the wrong shapes."""
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    modes = [(module, module.training) for module in model.modules()]
    is_compiled = COMPILER in sys.modules  # whose import takes a second
    model.eval()
    try:
        with not_compiled() if is_compiled else nullcontext():
            yield
    finally:
        for module, name, buffer, before in buffers:
            setattr(module, name, buffer.copy_(before))
        for module, mode in modes:
            module.training = mode
