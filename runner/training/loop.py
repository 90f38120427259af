"""The training loop, the same for every workload and every strategy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import make_trainer
from runner.parallel.several import with_own_state
from runner.parallel.task import Plan, Task
from runner.parallel.trainer import Trainer
from runner.training.checkpoint.resume import restore
from runner.training.checkpoint.shards import read_weights
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.source import source_of, source_of_test
from runner.training.evaluation import try_evaluation
from runner.training.finite import check_finite
from runner.training.places import owning
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import Settings
from runner.training.summary import Hook, Result, State
from runner.training.training import Training

__all__ = ["Hook", "Plan", "Result", "State", "Task", "fit"]


def fit(
    run: Run, task: Task, options: Settings, *, on_step: Sequence[Hook] = (), on_epoch: Sequence[Hook] = ()
) -> Result:
    """Train on all ranks, evaluate after each epoch, write metrics and checkpoints on rank 0. Collective.

    Before each step torch, ``random`` and NumPy are seeded from seed, step and rank, and before each batch is read, here or in
    another process, from seed, place in the epoch and rank; ``run.common_random`` is seeded from seed and step, so that it is the
    same on all ranks. So random numbers (for dropout or augmentation) do not depend on where a run was resumed. Generators of the
    data's own (``numpy.random.default_rng()``) are not seeded.

    Args:
        on_step: called on every rank after each optimizer step.
        on_epoch: called on every rank after each epoch and its evaluation, also one that was left as the training is to end early.

    Raises:
        UsageError: the data is too small for the batch, or has a form that cannot be trained on; the ranks' data, options or
            models differ; the loss is no number; the optimizer needs a closure; the checkpoint is damaged or does not fit; or
            another run writes to the same place.
        RunnerError: a file cannot be written; or loss and weights are not finite, with ``--check-finite`` loss or gradients.
        Preempted: a signal or the time limit has ended the training early; it is saved.
    """
    if run.train_by is not None:
        taken: Result = run.train_by(run, task, options)
        return taken
    with owning(run, options) as see_that_own:
        source = source_of(task)
        options = with_batch_of(source, options)
        looks = check_task(run, task, options)
        feed = feed_of(run, source, options, beside=None if task.test_data is None else source_of_test(task))
        with raised_on_all_ranks():
            task.check_stages(options)
            if options.pp > 1 and not (source.drop_last and feed.is_even):
                raise UsageError(
                    f"--pp {options.pp}: stages take batches of one size, and the data's may differ",
                    fix="say drop_last=True in the task or the DataLoader, and leave out a batch sampler",
                )
        trainer = make_trainer(task, run.setting(options.dtype, options, looks["training"].batch))
        training = Training(run, options, feed, trainer, on_step=on_step, on_epoch=on_epoch)
        if training.saved is None and (weights := _weights(run, task, options)) is not None:
            trainer.load_weights(weights)
        if training.is_at_its_end:
            return training.nothing_left()
        if "test" in looks and looks["test"].batch is not None:
            try_evaluation(run, trainer, looks["test"].batch)
        rate = rate_of(task, training.last_step)
        check = functools.partial(check_finite, run, trainer, training.position) if options.check_finite else None
        with training.begun(see_that_own):
            for batch in training.batches():
                if rate is not None:
                    set_rate(trainer.optimizer, rate(training.position.step))
                is_usual = feed.is_even and batch.all_samples == options.batch_size * run.data_size
                training.loss = trainer.step(batch.value, check, samples=None if is_usual else batch.samples)
        return training.result()


def _weights(run: Run, task: Task, options: Settings) -> Iterable[tuple[str, Tensor]] | None:
    """Return the weights that a fresh start begins with, if any are given."""
    path = options.weights
    if path is None:
        return task.weights() if task.weights is not None else None
    with run.agreeing():
        next(read_weights(path), None)
    return read_weights(path)


def trained(run: Run, task: Task, options: Settings) -> Trainer:
    """Return the task's model as a checkpoint has it, for use and not for training. Collective.

    Raises:
        UsageError: there is no checkpoint, or it is damaged or does not fit.
    """
    trainer = make_trainer(task, run.setting(options.dtype, options))
    saved, _ = restore(run, with_own_state(trainer), options, None)
    if saved is None:
        with raised_on_all_ranks():
            raise UsageError(
                f"there is no checkpoint in {options.checkpoint_dir}",
                fix="train first, or name another --checkpoint-dir",
            )
    for root in trainer.roots:
        root.eval()
    return trainer


@raised_on_all_ranks()
def rate_of(task: Task, total: int | None) -> Callable[[int], float] | None:
    """Return the factor of the learning rate by the step, from 0; None if it is constant.

    Args:
        total: steps of the whole training; None if that is not known.

    Raises:
        UsageError: the schedule takes the total, and it is not known.
    """
    schedule: Any = task.schedule
    warmup = task.warmup
    if schedule is None and not warmup:
        return None
    takes_total = schedule is not None and _needed_arguments(schedule) > 1
    if takes_total and total is None:
        raise UsageError(
            "the task's schedule takes the total of steps, and the data is a stream, whose length is not known",
            fix="give --max-steps, or a schedule of the step alone",
        )

    def rate(step: int) -> float:
        factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
        if schedule is None:
            return factor
        return float(factor * (schedule(step, total) if takes_total else schedule(step)))

    return rate


def set_rate(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to a multiple of the one that it began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _needed_arguments(schedule: Callable[..., float]) -> int:
    """How many arguments it needs; 1 if it does not tell."""
    try:
        parameters = inspect.signature(schedule).parameters.values()
    except ValueError:  # of some functions that are written in C
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in by_place and one.default is one.empty for one in parameters)
