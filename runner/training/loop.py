"""The training loop, the same for every workload and every strategy."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel import make_trainer
from runner.parallel.gradients import own_gradients
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
from runner.training.metrics.meter import Meter
from runner.training.metrics.output import Sink, open_output
from runner.training.metrics.profile import profiled
from runner.training.metrics.progress import ProgressDisplay, show_progress
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.speed import speeds
from runner.training.metrics.stragglers import Pace
from runner.training.preemption import end_early, listening
from runner.training.replicas import Replicas
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import Settings
from runner.versions.torch_private import norms_of

__all__ = ["Hook", "Plan", "Result", "State", "Task", "fit"]


@dataclass
class State:
    """What hooks receive."""

    model: nn.Module  # this rank's, not the strategy's wrapper
    optimizer: Optimizer
    position: Position
    records: list[StepRecord] = field(default_factory=list)  # those written last


Hook = Callable[[State], None]


@dataclass(frozen=True)
class Result:
    """How a training ended. The evaluation is None if the task has no test data, the accuracy if it has no classes to count."""

    steps: int
    samples_per_s: float
    val_loss: float | None
    val_accuracy: float | None


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
    device, dtype = run.device, getattr(torch, options.dtype)
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
        run.say(_going_on(saved, options, changes))
    if test is not None and test.batch is not None:
        try_evaluation(run, trainer, options, test.batch)
    checkpoints.begin(saved, see_that_own)
    replicas = Replicas(run, trainer) if options.check_replicas else None
    state = State(trainer.model, trainer.optimizer, position)
    trainer.go_on = run.job.board.go_on
    meter, pace = Meter(run, task, options.batch_size * run.data_size), Pace(run)
    last_step = _last_step(position, sampler.length, meter.global_batch, options)
    steps = profiled(run, options, last_step - position.step, meter.leave_out)
    check = functools.partial(_check_finite, run, trainer, position) if options.check_finite else None
    evaluation: Evaluation | None = None
    with ExitStack() as stack:
        # On a GPU a step is only launched: the metrics wait for the device.
        board = stack.enter_context(run.job.board.training(1 if device.type == "cpu" else sys.maxsize))
        sinks = open_output(run, options, saved, checkpoints, stack)
        show = stack.enter_context(
            show_progress(visible=run.is_main, epochs=options.epochs, steps=last_step, done=position.step)
        )
        log = _Log(sinks, show, pace, checkpoints)
        preemption = stack.enter_context(listening(run, checkpoints))
        trainer.model.train()
        while position.epoch < options.epochs and position.step < last_step:
            sampler.epoch, sampler.skip = position.epoch, position.samples
            meter.start()
            seed_random_numbers(options.seed, position.step, run.data_rank, device)  # for the loader's processes
            shapes = set[
                object
            ]()  # of the batches since the last evaluation: what is new to a compiled model is compiled
            board.enter("warm-up")
            batches = iter(loader)
            for left in steps(reversed(range(min(len(loader), last_step - position.step)))):
                seed_random_numbers(options.seed, position.step, run.data_rank, device)
                run.common_random.seed(f"{options.seed} {position.step}")
                pace.begin()
                inputs, targets = to_device(*parts_of(next(batches)), device, dtype)
                if inputs.shape not in shapes:
                    shapes.add(inputs.shape)
                    board.enter("warm-up")
                if task.schedule is not None:
                    _set_rate(trainer.optimizer, task.schedule(position.step))
                loss = trainer.step(inputs, targets, check)
                pace.end(trainer.ready)
                position.step += 1
                known = state.records[-1].loss if state.records else None
                board.step(position.step, last_step, position.epoch + 1, options.epochs, known, pace.newest)
                position.samples += meter.global_batch
                meter.add(loss, position, float(trainer.optimizer.param_groups[0]["lr"]))
                if on_step:
                    with board.during("step hook"):
                        for hook in on_step:
                            hook(state)
                show.step(position.epoch + 1, position.step, known)
                if replicas and options.check_replicas and position.step % options.check_replicas == 0:
                    replicas.check(position.step)
                if not left:
                    continue  # what follows is done below, after the evaluation
                if len(meter) == options.log_every:
                    state.records = log.write(meter.records(pace, preemption))
                    board.complete()
                wish = preemption.wish()
                is_due = checkpoints.is_due(position) or wish.saves
                # The metrics of a checkpoint must cover all steps up to it.
                if len(meter) and (is_due or wish.reason):
                    state.records = log.write(meter.records(pace))
                if is_due:
                    checkpoints.save(position)
                    meter.start()
                    wish = preemption.wish(now=True)  # now it is known how long that takes
                if wish.reason:
                    end_early(run, checkpoints, position, wish.reason)
            records = meter.records(pace, preemption)
            board.enter("evaluating")
            # It may take longer than the time that is left.
            is_over = preemption.wish(now=True).reason is not None
            evaluation = None if is_over else evaluate(run, trainer, options, preemption.ends)
            if records and evaluation:
                records[-1].val_loss, records[-1].val_accuracy = evaluation
            state.records = log.write(records)
            if records:
                show.line(_epoch_line(options.epochs, records, task))
            epoch_is_over = position.samples + meter.global_batch > sampler.length
            if epoch_is_over:
                position.epoch, position.samples = position.epoch + 1, 0
            with board.during("epoch hook"):
                for hook in on_epoch:
                    hook(state)
            is_due = checkpoints.is_due(position, epoch_is_over=epoch_is_over)
            wish = preemption.wish(now=True)
            if is_due or wish.saves:
                checkpoints.save(position)
                wish = preemption.wish(now=True)
            is_evaluated = evaluation is not None or task.test_data is None
            if wish.reason and (position.step < last_step or not is_evaluated):
                end_early(run, checkpoints, position, wish.reason)
            trainer.model.train()
        checkpoints.end(position)
    result = Result(position.step, meter.overall(), *(evaluation or (None, None)))
    run.say(_summary(run, result, task, options, options.checkpoint_dir / name_of(position.step)))
    return result


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


class _Log:
    """Writes records to the sinks, and prints a line about a slow rank, and the first time that the loss is not finite."""

    def __init__(self, sinks: Sequence[Sink], show: ProgressDisplay, pace: Pace, checkpoints: Checkpoints) -> None:
        self._sinks, self._show, self._pace, self._checkpoints = sinks, show, pace, checkpoints
        self._told = False

    def write(self, records: list[StepRecord]) -> list[StepRecord]:
        """Write the records, and return them. Collective.

        Raises:
            RunnerError: they cannot be written, or losses and weights are not finite.
        """
        for sink in self._sinks:
            sink.write(records)
        odd = next((record for record in records if not math.isfinite(record.loss)), None)
        if odd and not self._told:
            self._told = True
            self._show.line(
                f"the loss is {odd.loss} at step {odd.step}, in epoch {odd.epoch} (--check-finite ends the job there)"
            )
        if slow := self._pace.line():
            self._show.line(slow)
        self._checkpoints.see(records)
        return records


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
                fix="go on from an earlier checkpoint with --resume CHECKPOINT and a smaller --lr, or other data",
            )
    with run.job.board.training():
        evaluation = evaluate(run, trainer, options)
    result = Result(position.step, 0.0, *(evaluation or (None, None)))
    texts = ", ".join(_evaluation_texts(result, trainer.task))
    at, option = f"epoch {position.epoch} of {options.epochs}", "--epochs"
    if position.epoch < options.epochs:
        at, option = f"step {position.step} of {options.max_steps}", "--max-steps"
    run.say(
        f"nothing left to do: {saved.path} is at {at}{f' ({texts})' if texts else ''}; to go on, give a larger {option}"
    )
    return result


def _check_finite(run: Run, trainer: Trainer, position: Position, loss: Tensor) -> None:
    """Raise on all ranks if the loss or a gradient on any of them is not finite. Collective.

    Gradients that a scaler (fp16) finds infinite are its own business. Those of data-parallel ranks are averaged by now, so
    that the rank is not known whose were odd.
    """
    gradients = own_gradients(trainer.model) if trainer.scaler is None else {}
    norms = [norm.double() for norm in norms_of(list(gradients.values()))] if gradients else []
    own_norm = float(torch.stack(norms).sum()) if norms else 0.0
    losses, all_norms = run.sum(float(loss), own_norm, dimension=None)
    place = f"at step {position.step + 1}, in epoch {position.epoch + 1}"
    if not math.isfinite(losses):
        own = None if math.isfinite(loss) else f"--check-finite: the loss is {float(loss)} on rank {run.rank} {place}"
        run.agree(own, RunnerError)
    elif not math.isfinite(all_norms):
        odd = (name for name, norm in zip(gradients, norms, strict=True) if not math.isfinite(norm))
        own = next((f"--check-finite: the gradient of {name} is not finite {place}" for name in odd), None)
        run.agree(own, RunnerError)


def _going_on(saved: Saved, options: Settings, changes: list[str]) -> str:
    position = saved.position
    text = f"going on from {saved.path}, step {position.step}, {position.epoch} of {options.epochs} epochs done"
    return f"{text}; {', '.join(changes)}" if changes else text


def _epoch_line(epochs: int, records: list[StepRecord], task: Task) -> str:
    """The line of an epoch. It fits 80 columns even if some numbers have six digits."""
    last = records[-1]
    mean = sum(record.loss for record in records) / len(records)
    parts = [f"epoch {last.epoch}/{epochs}", f"step {last.step}", f"loss {mean:.4g}"]
    if last.val_loss is not None:
        accuracy = ""
        if task.is_classification:
            accuracy = " (accuracy n/a)" if last.val_accuracy is None else f" ({_accuracy_text(last.val_accuracy)})"
        other = f" ({_in_its_unit(last.val_loss, task)})" if task.loss_in else ""
        parts.append(f"test {last.val_loss:.4g}{other}{accuracy}")
    return "  ".join([*parts, f"{last.samples_per_s * task.units_per_sample:.0f} {task.unit}/s"])


def _evaluation_texts(result: Result, task: Task) -> list[str]:
    if result.val_loss is None:
        return []
    texts = [f"test loss {result.val_loss:.4g}", *([_in_its_unit(result.val_loss, task)] if task.loss_in else [])]
    return [*texts, f"test accuracy {_accuracy_text(result.val_accuracy)}"] if task.is_classification else texts


def _accuracy_text(accuracy: float | None) -> str:
    return "n/a" if accuracy is None else f"{100 * accuracy:.2f} %"


def _in_its_unit(loss: float, task: Task) -> str:
    unit, factor = task.loss_in or ("", 1.0)
    return f"{loss * factor:.4g} {unit}"


def _summary(run: Run, result: Result, task: Task, options: Settings, checkpoint: Path) -> str:
    parts = [f"{result.steps} steps", *_evaluation_texts(result, task)]
    if result.samples_per_s:
        speed = speeds(result.samples_per_s, task, run.size, run.device)
        parts.append(f"{result.samples_per_s * task.units_per_sample:.0f} {task.unit}/s")
        if "tflops_per_rank" in speed:
            parts.append(f"{speed['tflops_per_rank']:.3g} TFLOP/s per rank")
        if "mfu" in speed:
            parts.append(f"{100 * speed['mfu']:.1f} % of the device's (MFU)")
    return f"done: {', '.join(parts)}\nmetrics     {options.metrics}\ncheckpoint  {checkpoint}"
