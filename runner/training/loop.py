"""The training loop, the same for every workload and every strategy."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel import make_trainer
from runner.parallel.task import Plan, Task, parts_of, to_device
from runner.parallel.trainer import Trainer
from runner.training.checkpoint import resume
from runner.training.checkpoint.checkpoint_folder import Position, Saved, name_of
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.checkpoint.ownership import owning
from runner.training.checkpoint.restore import restore
from runner.training.checkpoint.weights import read_weights
from runner.training.data.batches import ShardSampler, train_loader
from runner.training.data.random_numbers import seed_random_numbers
from runner.training.evaluation import Evaluation, evaluate, try_evaluation
from runner.training.finite import check_finite
from runner.training.hooks.hooks import Hooks
from runner.training.hooks.metrics import Log, MetricsHook
from runner.training.hooks.saving import SavingHook
from runner.training.hooks.state import Hook, State
from runner.training.metrics.meter import Meter
from runner.training.metrics.output import open_output
from runner.training.metrics.profile import profiled
from runner.training.metrics.progress import show_progress
from runner.training.metrics.stragglers import Pace
from runner.training.preemption import listening
from runner.training.replicas import Replicas
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import Settings
from runner.training.summary import Result, evaluation_texts, resumed_text, summary

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
        on_epoch: called on every rank after each epoch and its evaluation.

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
        return _train(run, task, options, on_step, on_epoch, see_that_own)


def _train(
    run: Run,
    task: Task,
    options: Settings,
    on_step: Sequence[Hook],
    on_epoch: Sequence[Hook],
    see_that_own: Callable[[], None],
) -> Result:
    test = check_task(run, task, options)
    sampler = ShardSampler.over(task.train_data, run.data_rank, run.data_size, options.seed)
    loader = train_loader(task.train_data, sampler, options.batch_size, options.workers)
    trainer, checkpoints = _prepare(run, task, options)
    saved, changes = restore(run, trainer, options, checkpoints.settings)
    if saved is None and (weights := _weights(run, task, options)) is not None:
        trainer.load_weights(weights)
    position = saved.position if saved else Position()
    if saved:
        if _is_at_its_end(position, options):
            return _nothing_left(run, trainer, options, saved)
        run.say(resumed_text(saved, options, changes))
    if test is not None and test.batch is not None:
        try_evaluation(run, trainer, options, test.batch)
    checkpoints.begin(saved, see_that_own)
    replicas = Replicas(run, trainer) if options.check_replicas else None
    state = State(trainer.model, trainer.optimizer, position)
    trainer.go_on = run.job.board.go_on
    meter, pace = Meter(run, task, options.batch_size * run.data_size), Pace(run)
    last_step = _last_step(position, sampler.length, meter.global_batch, options)
    steps = profiled(run, options, last_step - position.step, meter.leave_out)
    with ExitStack() as stack:
        # On a GPU a step is only launched: the metrics wait for the device.
        stack.enter_context(run.job.board.training(1 if run.device.type == "cpu" else sys.maxsize))
        sinks = open_output(run, options, saved, checkpoints, stack)
        show = stack.enter_context(
            show_progress(visible=run.is_main, epochs=options.epochs, steps=last_step, done=position.step)
        )
        metrics = MetricsHook(
            run, options, trainer, state, meter, pace, show, Log(sinks, show, pace, checkpoints), last_step
        )
        preemption = stack.enter_context(listening(run, checkpoints))
        hooks = Hooks(
            run=run,
            options=options,
            trainer=trainer,
            state=state,
            metrics=metrics,
            replicas=replicas,
            preemption=preemption,
            saving=SavingHook(run, position, checkpoints, preemption, metrics, last_step),
            on_step=on_step,
            on_epoch=on_epoch,
        )
        evaluation = _loop(run, options, trainer, loader, sampler, position, last_step, steps, hooks)
        checkpoints.end(position)
    result = Result(position.step, meter.overall(), *(evaluation or (None, None)))
    run.say(summary(run, result, task, options, options.checkpoint_dir / name_of(position.step)))
    return result


def _loop(
    run: Run,
    options: Settings,
    trainer: Trainer,
    loader: DataLoader[Any],
    sampler: ShardSampler,
    position: Position,
    last_step: int,
    steps: Callable[[Iterable[int]], Iterable[int]],
    hooks: Hooks,
) -> Evaluation | None:
    """All epochs that are left. Returns the last one's evaluation."""
    task, device, dtype = trainer.task, run.device, getattr(torch, options.dtype)
    global_batch = options.batch_size * run.data_size
    check = functools.partial(check_finite, run, trainer, position) if options.check_finite else None
    evaluation: Evaluation | None = None
    trainer.model.train()
    while position.epoch < options.epochs and position.step < last_step:
        sampler.epoch, sampler.skip = position.epoch, position.samples
        hooks.metrics.begin_epoch()
        seed_random_numbers(options.seed, position.step, run.data_rank, device)  # for the loader's processes
        batches = iter(loader)
        for left in steps(reversed(range(min(len(loader), last_step - position.step)))):
            seed_random_numbers(options.seed, position.step, run.data_rank, device)
            run.common_random.seed(f"{options.seed} {position.step}")
            hooks.metrics.begin_step()
            inputs, targets = to_device(*parts_of(next(batches)), device, dtype)
            hooks.metrics.see(inputs)
            if task.schedule is not None:
                _set_rate(trainer.optimizer, task.schedule(position.step))
            loss = trainer.step(inputs, targets, check)
            position.step, position.samples = position.step + 1, position.samples + global_batch
            hooks.after_step(loss, is_last=not left)
        evaluation = hooks.evaluate()
        epoch_is_over = position.samples + global_batch > sampler.length
        if epoch_is_over:
            position.epoch, position.samples = position.epoch + 1, 0
        hooks.after_epoch(epoch_is_over=epoch_is_over, is_evaluated=evaluation is not None or task.test_data is None)
        trainer.model.train()
    return evaluation


def _weights(run: Run, task: Task, options: Settings) -> Iterable[tuple[str, Tensor]] | None:
    """The weights that a fresh start begins with, if any are given.

    Raises:
        UsageError: a rank cannot read the file.
    """
    path = options.weights
    if path is None:
        return task.weights() if task.weights is not None else None
    problem: UsageError | None = None
    try:
        next(read_weights(path), None)
    except UsageError as error:
        problem = error
    run.agree(problem)
    return read_weights(path)


def trained(run: Run, task: Task, options: Settings) -> Trainer:
    """The task's model as a checkpoint has it, for use and not for training. Collective.

    Raises:
        UsageError: there is no checkpoint, or it is damaged or does not fit.
    """
    trainer, checkpoints = _prepare(run, task, options)
    saved, _ = restore(run, trainer, options, checkpoints.settings, goes_on=False)
    if saved is None:
        with raised_on_all_ranks():
            raise UsageError(
                f"there is no checkpoint in {options.checkpoint_dir}",
                fix="train first, or name another --checkpoint-dir",
            )
    trainer.model.eval()
    return trainer


def _prepare(run: Run, task: Task, options: Settings) -> tuple[Trainer, Checkpoints]:
    trainer = make_trainer(task, run.setting(options.dtype, options))
    settings = resume.settings_of(run, task, options, trainer.optimizer)
    return trainer, Checkpoints(run, trainer, options, settings)


def _set_rate(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to a multiple of the one that it began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _is_at_its_end(position: Position, options: Settings) -> bool:
    return position.epoch >= options.epochs or position.step >= (options.max_steps or math.inf)


def _last_step(position: Position, length: int, global_batch: int, options: Settings) -> int:
    """The number of the last step of the training."""
    here, whole = (length - position.samples) // global_batch, length // global_batch
    last = position.step + here + (options.epochs - position.epoch - 1) * whole
    return min(last, options.max_steps or last)


def _nothing_left(run: Run, trainer: Trainer, options: Settings, saved: Saved) -> Result:
    position = saved.position
    if not saved.is_finite:
        with raised_on_all_ranks():
            raise RunnerError(
                f"nothing is left to do, and the loss of {saved.path} was not finite",
                fix="continue from an earlier checkpoint with --resume CHECKPOINT and a smaller --lr, or other data",
            )
    with run.job.board.training():
        evaluation = evaluate(run, trainer, options)
    result = Result(position.step, 0.0, *(evaluation or (None, None)))
    texts = ", ".join(evaluation_texts(result, trainer.task))
    at, option = f"epoch {position.epoch} of {options.epochs}", "--epochs"
    if position.epoch < options.epochs:
        at, option = f"step {position.step} of {options.max_steps}", "--max-steps"
    run.say(
        f"nothing left to do: {saved.path} is at {at}{f' ({texts})' if texts else ''}; to continue, give a larger {option}"
    )
    return result
