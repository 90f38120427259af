"""The training loop, the same for every workload and every strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from runner.errors import UsageError
from runner.parallel import load_strategy
from runner.training import checkpoint
from runner.training.batches import ShardSampler, evaluation_loader, train_loader
from runner.training.checkpoint import Position
from runner.training.metrics import MetricsFile, StepRecord, TensorBoard
from runner.training.options import TrainingOptions
from runner.training.progress import show_progress
from runner.training.run import Run
from runner.training.task import Task, to_device, train_step

__all__ = ["Hook", "Result", "State", "Task", "fit"]


@dataclass
class State:
    """What hooks are shown."""

    model: nn.Module  # as the strategy wrapped it
    optimizer: Optimizer
    position: Position
    records: list[StepRecord] = field(default_factory=list)  # of the window written last


Hook = Callable[[State], None]


@dataclass(frozen=True)
class Result:
    """How a training ended. The evaluation is None where the task has no test data."""

    steps: int
    samples_per_s: float
    val_loss: float | None
    val_accuracy: float | None


def fit(
    run: Run,
    task: Task,
    options: TrainingOptions,
    *,
    on_step: Sequence[Hook] = (),
    on_epoch: Sequence[Hook] = (),
) -> Result:
    """Train on all ranks, evaluate after each epoch, write metrics and checkpoints on rank 0. Collective.

    Args:
        on_step: called on every rank after each optimizer step.
        on_epoch: called on every rank after each epoch and its evaluation.

    Raises:
        UsageError: the data is too small for the batch, or the checkpoint does not fit.
    """
    if run.instead is not None:
        taken: Result = run.instead(run, task, options)
        return taken
    device, dtype = run.device, getattr(torch, options.dtype)
    bare = task.model.to(device, dtype)
    resumed = _read_checkpoint(run, options, bare)
    model, optimizer = load_strategy(options.strategy)(bare, task.optimizer, run.mesh, options.gradients)
    position = checkpoint.restore(resumed, bare, optimizer) if resumed else Position()
    sampler = ShardSampler.over(task.train_data, run.rank, run.size, options.seed)
    loader = train_loader(task.train_data, sampler, options.batch_size, options.workers)
    state = State(model, optimizer, position)
    meter = _Meter(run, options.batch_size * run.size)
    steps_per_epoch = len(loader)
    evaluation: tuple[float, float | None] | None = None
    saved_at = position.step if resumed else -1
    with ExitStack() as stack:
        sinks = _open_sinks(run, options, position if resumed else None, stack)
        show = stack.enter_context(
            show_progress(visible=run.is_main, epochs=options.epochs, steps_per_epoch=steps_per_epoch)
        )
        last_step = options.max_steps or math.inf
        model.train()
        while position.epoch < options.epochs and position.step < last_step:
            sampler.epoch, sampler.skip = position.epoch, position.samples
            meter.start()
            for batch in loader:
                inputs, targets = to_device(batch[0], batch[1], device, dtype)
                loss = train_step(model, optimizer, task, inputs, targets, options.gradients.micro_batches)
                position.step += 1
                position.samples += meter.global_batch
                meter.add(loss, position, optimizer.param_groups[0]["lr"])
                for hook in on_step:
                    hook(state)
                show.step(position.epoch, position.samples // meter.global_batch)
                if len(meter) == options.log_every and position.samples // meter.global_batch < steps_per_epoch:
                    state.records = _write(sinks, meter.records())
                if position.step >= last_step:
                    break
            records = meter.records()
            if task.test_data is not None:
                evaluation = _evaluate(run, task, bare, options, dtype)
                if records:
                    records[-1].val_loss, records[-1].val_accuracy = evaluation
            state.records = _write(sinks, records)
            epoch_is_over = position.samples + meter.global_batch > _whole_epoch(sampler)
            if records:
                show.line(_epoch_line(options.epochs, records, task, meter))
            if epoch_is_over:
                position.epoch, position.samples = position.epoch + 1, 0
            for hook in on_epoch:
                hook(state)
            if epoch_is_over and options.save_every and position.epoch % options.save_every == 0:
                _save(run, options, bare, optimizer, position)
                saved_at = position.step
            model.train()
        if evaluation is None and task.test_data is not None:  # resumed at the end
            evaluation = _evaluate(run, task, bare, options, dtype)
        if saved_at != position.step:
            _save(run, options, bare, optimizer, position)
    result = Result(position.step, meter.overall(), *(evaluation or (None, None)))
    run.say(_summary(result, task, options))
    return result


class _Meter:
    """Collects losses on the device and turns them into records, with one collective for many steps."""

    def __init__(self, run: Run, global_batch: int) -> None:
        self.run = run
        self.global_batch = global_batch
        self._losses: list[Tensor] = []
        self._places: list[tuple[int, int, float]] = []
        self._started = time.perf_counter()
        self._seconds = 0.0
        self._steps = 0

    def __len__(self) -> int:
        return len(self._losses)

    def start(self) -> None:
        """Begin to measure time: what came before was not training."""
        self._started = time.perf_counter()

    def add(self, loss: Tensor, position: Position, lr: float) -> None:
        self._losses.append(loss)
        self._places.append((position.step, position.epoch, lr))

    def records(self) -> list[StepRecord]:
        """The records of the steps since the last call, losses averaged over all ranks. Collective."""
        if not self._losses:
            return []
        losses = torch.stack(self._losses).double()
        dist.all_reduce(losses)
        means = (losses / self.run.size).tolist()
        seconds = time.perf_counter() - self._started
        self._seconds += seconds
        self._steps += len(means)
        speed = len(means) * self.global_batch / seconds
        records = [
            StepRecord(step=step, epoch=epoch, loss=loss, lr=lr, samples_per_s=speed)
            for (step, epoch, lr), loss in zip(self._places, means, strict=True)
        ]
        self._losses, self._places = [], []
        self._started = time.perf_counter()
        return records

    def overall(self) -> float:
        """Samples per second of all ranks over the whole training, evaluation not counted."""
        return self._steps * self.global_batch / self._seconds if self._seconds else 0.0


def _read_checkpoint(run: Run, options: TrainingOptions, model: nn.Module) -> dict[str, Any] | None:
    """The checkpoint to go on from, on every rank: read by rank 0 alone."""
    if options.resume is None:
        return None
    path = options.checkpoint if options.resume == "" else type(options.checkpoint)(options.resume)
    if options.resume == "" and not run.on_main(path.exists):
        run.say(f"no checkpoint in {options.checkpoint_dir} yet: starting from the beginning")
        return None
    content = run.on_main(lambda: checkpoint.read(path, run.workload, model))
    run.say(f"going on from {path}, step {content['position']['step']}, epoch {content['position']['epoch']}")
    return content


def _save(run: Run, options: TrainingOptions, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
    if run.is_main:
        checkpoint.save(options.checkpoint, run.workload, model, optimizer, position)


def _open_sinks(
    run: Run, options: TrainingOptions, resumed: Position | None, stack: ExitStack
) -> list[MetricsFile | TensorBoard]:
    def open_on_main() -> None:
        try:
            sinks.append(MetricsFile(options.metrics, stack, resumed.step if resumed else None))
            if options.tensorboard is not None:
                sinks.append(TensorBoard(options.tensorboard, stack))
        except OSError as error:
            raise UsageError(f"cannot write {error.filename}: {error.strerror}; name another file or folder") from None

    sinks: list[MetricsFile | TensorBoard] = []
    run.on_main(open_on_main)
    return sinks


def _write(sinks: Sequence[MetricsFile | TensorBoard], records: list[StepRecord]) -> list[StepRecord]:
    for sink in sinks:
        sink.write(records)
    return records


def _whole_epoch(sampler: ShardSampler) -> int:
    return sampler.length // sampler.size * sampler.size


@torch.no_grad()
def _evaluate(
    run: Run, task: Task, model: nn.Module, options: TrainingOptions, dtype: torch.dtype
) -> tuple[float, float | None]:
    """(mean loss, accuracy) over the test data, every sample counted once. Collective.

    The bare model is called: ranks may have different numbers of batches, which DDP's own forward does not allow.
    """
    assert task.test_data is not None
    loader: DataLoader[Any] = evaluation_loader(task.test_data, run.rank, run.size, max(options.batch_size, 256))
    model.eval()
    loss_sum, correct, count = 0.0, 0, 0
    for inputs, targets in loader:
        moved, wanted = to_device(inputs, targets, run.device, dtype)
        outputs = model(moved)
        loss_sum += task.loss(outputs, wanted).item() * len(targets)
        if task.is_classification:
            correct += int((outputs.argmax(dim=1) == wanted).sum())
        count += len(targets)
    loss_sum, hits, total = run.sum(loss_sum, correct, count)
    return loss_sum / total, hits / total if task.is_classification else None


def _epoch_line(epochs: int, records: list[StepRecord], task: Task, meter: _Meter) -> str:
    last = records[-1]
    mean = sum(record.loss for record in records) / len(records)
    parts = [f"epoch {last.epoch + 1}/{epochs}", f"step {last.step}", f"loss {mean:.4f}"]
    parts += _evaluation_texts(last.val_loss, last.val_accuracy)
    return "  ".join([*parts, f"{last.samples_per_s:.0f} {task.unit}/s"])


def _evaluation_texts(val_loss: float | None, val_accuracy: float | None) -> list[str]:
    texts = [] if val_loss is None else [f"test loss {val_loss:.4f}"]
    return texts if val_accuracy is None else [*texts, f"test accuracy {100 * val_accuracy:.2f} %"]


def _summary(result: Result, task: Task, options: TrainingOptions) -> str:
    parts = [f"{result.steps} steps", *_evaluation_texts(result.val_loss, result.val_accuracy)]
    if result.samples_per_s:
        parts.append(f"{result.samples_per_s:.0f} {task.unit}/s")
    return f"done: {', '.join(parts)}\nmetrics     {options.metrics}\ncheckpoint  {options.checkpoint}"
