"""The evaluation of a model in training: loss, accuracy and the task's metrics, exact over all samples of all ranks."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import precision
from runner.parallel.batch_forms import form_of
from runner.parallel.modes import evaluation_mode
from runner.parallel.task import Best, Task, WeightedLoss, counts_itself, members_of, weighted
from runner.parallel.trainer import Trainer
from runner.parallel.trees import length_of_batch, map_tensors, tensors_in, to_device
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.random_numbers import own_random_numbers
from runner.training.data.source import source_of, source_of_test
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import COMPILER


class Evaluation(NamedTuple):
    """The result of an evaluation, over all test data.

    Attributes:
        accuracy: None if there are no classes to count: see ``hits``.
        metrics: the task's, by name.
    """

    loss: float
    accuracy: float | None = None
    metrics: Mapping[str, float] = {}  # it is not changed


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


def best_number(evaluation: Evaluation, best: Best) -> float:
    """The number of an evaluation by which the best is found.

    Raises:
        UsageError: it has none of this name.
    """
    known = {"loss": evaluation.loss, "accuracy": evaluation.accuracy, **evaluation.metrics}
    found = {name: number for name, number in known.items() if number is not None}
    if best.name not in found:
        raise UsageError(
            f"keep_best: the evaluation has no {best.name}, but {', '.join(found)}",
            fix="name one of these, or a metric",
        )
    return found[best.name]


class Computed(NamedTuple):
    """A batch of an evaluation: its loss, what the model has returned, and what metrics compare that with."""

    loss: WeightedLoss
    outputs: Any
    targets: Any


def computed(trainer: Trainer, batch: Any) -> Computed:
    """Compute the loss of a batch as a step does, in its precision, and the outputs.

    Raises:
        UsageError: the batch does not fit the task's loss, or the loss is no number.
    """
    task, seen = trainer.task, [None]

    def call(*inputs: Any, **named: Any) -> Any:
        seen[0] = trainer.outputs(*inputs, **named)
        return seen[0]

    with trainer.computing():
        loss = task.loss_of(call, batch)
    outputs = map_tensors(precision.widened(trainer.options.precision), seen[0])
    return Computed(loss, outputs, batch if task.batch_loss is not None else batch[1])


class EvaluationSums:
    """Adds up this rank's batches. A task's metric is a function of (outputs, targets), or a torchmetrics.Metric."""

    def __init__(self, task: Task, run: Run) -> None:
        """Start the sums of a task's evaluation. Metrics of torchmetrics are reset."""
        self._task, self._run = task, run
        self._loss = [0.0, 0.0]
        self._classes = [0.0, 0.0, 0.0]  # right, predictions, batches without
        self._metrics = {name: [0.0, 0.0] for name, one in task.metrics.items() if not counts_itself(one)}
        for one in task.metrics.values():
            if counts_itself(one):
                one.reset()

    def add(self, batch: Computed, samples: int) -> None:
        """Add a batch of so many samples."""
        _add(self._loss, batch.loss, samples)
        task, outputs, targets = self._task, batch.outputs, batch.targets
        if task.is_classification and task.batch_loss is None:
            counted = hits(outputs, targets)
            right, predictions = counted or (0, 0)
            for place, number in enumerate((right, predictions, counted is None)):
                self._classes[place] += number
        for name, metric in task.metrics.items():
            if counts_itself(metric):
                metric.to(self._run.device).update(outputs, targets)
            else:
                _add(self._metrics[name], _number_of(name, metric(outputs, targets)), samples)

    def evaluation(self) -> Evaluation:
        """The result of all ranks. Collective."""
        own = [*self._loss, *self._classes, *(number for pair in self._metrics.values() for number in pair)]
        loss, weight, right, predictions, without, *rest = self._run.sum(*own)
        pairs = dict(zip(self._metrics, zip(rest[::2], rest[1::2], strict=True), strict=True))
        metrics: dict[str, float] = {}
        for name, metric in self._task.metrics.items():
            if name in pairs:
                total, number = pairs[name]
                metrics[name] = total / number if number else math.nan
            else:
                metrics |= _results_of(name, metric, self._run)
        accuracy = right / predictions if predictions and not without else None
        return Evaluation(loss / weight if weight else math.nan, accuracy, metrics)


def hits(outputs: Any, targets: Tensor) -> tuple[int, int] | None:
    """How many predictions are right, and how many there are; None if these are no classes.

    Args:
        outputs: [batch, classes, …]: the largest is the prediction, for each sample, pixel or token.
        targets: [batch, …] class numbers, integers. Those that are no class (padding, ``ignore_index``) do not count.
    """
    is_integer = not (targets.is_floating_point() or targets.is_complex() or str(targets.dtype) == "torch.bool")
    if not is_integer or not isinstance(outputs, Tensor) or outputs.dim() < 2 or outputs.is_complex():
        return None
    classes = outputs.shape[1]
    if classes < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return None
    right = int((outputs.argmax(dim=1) == targets).sum())
    return right, int(((targets >= 0) & (targets < classes)).sum())


def _add(sums: list[float], loss: WeightedLoss, samples: int) -> None:
    total = float(loss.loss)
    sums[0] += total if loss.weight is not None else total * samples
    sums[1] += samples if loss.weight is None else float(loss.weight)


def _number_of(name: str, value: Any) -> WeightedLoss:
    """Return a metric of a batch: its mean over the samples, or a sum and a weight."""
    total, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if isinstance(total, Real):
        total = torch.tensor(float(total), dtype=torch.float64)
    elif isinstance(total, Tensor) and not total.is_complex():
        total = total.double()  # of counts, too
    try:
        return weighted(total if weight is None else (total, weight))
    except UsageError:
        raise UsageError(
            f"the metric {name} is {form_of(value)}, and has to be one number, or a pair (sum, weight)",
            fix="return the mean over the batch, or a sum and the number of its parts",
        ) from None


def _results_of(name: str, metric: Any, run: Run) -> dict[str, float]:
    """Return the numbers of a metric of torchmetrics, or of a collection of them, over all ranks by name. Collective."""
    for one in members_of(metric):
        one.process_group = run.group()
        _fill_lists(name, one, run)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method of metric")  # on a rank that has no test data
        value = metric.compute()
    found = {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    for key, one in found.items():
        if not isinstance(one, Real) and not (isinstance(one, Tensor) and one.numel() == 1):
            raise UsageError(
                f"the metric {key} is {form_of(one)}, and has to be one number",
                fix="let it average, for example by average='macro'",
            )
    return {key: float(one) for key, one in found.items()}


@raised_on_all_ranks()
def _fill_lists(name: str, metric: Any, run: Run) -> None:
    """Extend the lists of tensors that a metric keeps by empty ones, to the same length on all ranks. Collective.

    torchmetrics gathers such tensors one after the other, and a rank may have seen fewer batches than others, or none.
    """
    lists = {key: state for key, state in getattr(metric, "metric_state", {}).items() if isinstance(state, list)}
    if run.data_size == 1 or not lists:
        return
    own = {
        key: (len(state), (state[0].dtype, state[0].shape) if state and isinstance(state[0], Tensor) else None)
        for key, state in lists.items()
    }
    everyone: list[Any] = [None] * run.data_size
    dist.all_gather_object(everyone, own, group=run.group())
    for key, state in lists.items():
        forms = [one[key] for one in everyone]
        most, form = max(forms, key=lambda one: one[0])
        if all(count == most for count, _ in forms):
            continue
        dtype, shape = form or (None, ())
        if not shape:
            raise UsageError(
                f"the metric {name} keeps single numbers ({key}), and the ranks have different counts of them, which torchmetrics cannot gather",
                fix="give a function of (outputs, targets) that returns a pair (sum, weight)",
            )
        state.extend([torch.empty((0, *shape[1:]), dtype=dtype, device=run.device)] * (most - len(state)))
