"""The state that a training gives its hooks, the result that it returns, and the lines that it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from runner.parallel.task import Task
from runner.training.checkpoint.checkpoint_folder import Position, Saved
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.speed import speeds
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass
class State:
    """The state of a training that hooks receive."""

    model: nn.Module  # this rank's, not the strategy's wrapper
    optimizer: Optimizer
    position: Position
    records: list[StepRecord] = field(default_factory=list)  # those written last
    # Ends the training after this step, with a checkpoint; one rank's call is enough.
    stop: Callable[[], None] = lambda: None


Hook = Callable[[State], None]


@dataclass(frozen=True)
class Result:
    """How a training ended. The evaluation is None if the task has no test data, the accuracy if it has no classes to count."""

    steps: int
    samples_per_s: float
    val_loss: float | None
    val_accuracy: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)  # the task's, of the last evaluation


def resumed_text(saved: Saved, options: Settings, changes: list[str]) -> str:
    position = saved.position
    text = f"continuing from {saved.path}, step {position.step}, {position.epoch} of {options.epochs} epochs done"
    return f"{text}; {', '.join(changes)}" if changes else text


@dataclass
class EpochMeans:
    """The means of an epoch's steps, of those that this run has computed, in however many parts they are written."""

    steps: int = 0
    losses: float = 0.0
    seconds: float = 0.0  # per sample

    def add(self, records: Sequence[StepRecord]) -> None:
        self.steps += len(records)
        self.losses += sum(record.loss for record in records)
        self.seconds += sum(1 / record.samples_per_s for record in records)

    @property
    def loss(self) -> float:
        return self.losses / self.steps

    @property
    def samples_per_s(self) -> float:
        return self.steps / self.seconds


def epoch_line(epochs: int, last: StepRecord, means: EpochMeans, task: Task) -> str:
    """The line of an epoch, with its last step. It fits 80 columns even if some numbers have six digits."""
    parts = [f"epoch {last.epoch}/{epochs}", f"step {last.step}", f"loss {means.loss:.4g}"]
    return "  ".join(
        [*parts, *_evaluated(last, task), f"{means.samples_per_s * task.units_per_sample:.0f} {task.unit}/s"]
    )


def step_line(last: StepRecord, task: Task) -> str:
    """The line of an evaluation in the middle of an epoch."""
    return "  ".join([f"step {last.step}", *_evaluated(last, task)])


def _evaluated(last: StepRecord, task: Task) -> list[str]:
    found = []
    if last.val_loss is not None:
        accuracy = ""
        if task.is_classification and task.batch_loss is None:
            accuracy = " (accuracy n/a)" if last.val_accuracy is None else f" ({_accuracy_text(last.val_accuracy)})"
        other = f" ({_in_its_unit(last.val_loss, task)})" if task.loss_in else ""
        found.append(f"test {last.val_loss:.4g}{other}{accuracy}")
    names = {name: name.removeprefix("val_") for name in last.more if name.startswith("val_")}
    names |= {"val_loss": "test loss"} if "val_loss" in names else {}
    return found + [f"{text} {last.more[name]:.4g}" for name, text in names.items()]


def evaluation_texts(result: Result, task: Task) -> list[str]:
    if result.val_loss is None:
        return []
    texts = [f"test loss {result.val_loss:.4g}", *([_in_its_unit(result.val_loss, task)] if task.loss_in else [])]
    if task.is_classification and task.batch_loss is None:
        texts.append(f"test accuracy {_accuracy_text(result.val_accuracy)}")
    return [*texts, *(f"{name} {value:.4g}" for name, value in result.metrics.items())]


def _accuracy_text(accuracy: float | None) -> str:
    return "n/a" if accuracy is None else f"{100 * accuracy:.2f} %"


def _in_its_unit(loss: float, task: Task) -> str:
    unit, factor = task.loss_in or ("", 1.0)
    return f"{loss * factor:.4g} {unit}"


def summary(run: Run, result: Result, task: Task, options: Settings, checkpoint: Path) -> str:
    parts = [f"{result.steps} steps", *evaluation_texts(result, task)]
    if result.samples_per_s:
        speed = speeds(result.samples_per_s, task, run.size, run.device)
        parts.append(f"{result.samples_per_s * task.units_per_sample:.0f} {task.unit}/s")
        if "tflops_per_rank" in speed:
            parts.append(f"{speed['tflops_per_rank']:.3g} TFLOP/s per rank")
        if "mfu" in speed:
            parts.append(f"{100 * speed['mfu']:.1f} % of the device's (MFU)")
    return f"done: {', '.join(parts)}\nmetrics     {options.metrics}\ncheckpoint  {checkpoint}"
