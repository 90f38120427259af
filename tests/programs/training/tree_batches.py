"""Trainings on dict batches, as the example of the docs trains: with another data, loss or metric if that is asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import Dataset

from runner.base.settings import option
from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

_EXAMPLE = Path(__file__).parents[3] / "docs" / "train" / "examples" / "transformer.py"
_SPEC = importlib.util.spec_from_file_location("transformer", _EXAMPLE)
assert _SPEC is not None
assert _SPEC.loader is not None
transformer: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(transformer)


class First(Dataset[Any]):
    """So many samples of the data."""

    def __init__(self, data: Any, count: int) -> None:
        self.data, self.count = data, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.data[number]


class Counter:
    """Is like a metric of torchmetrics, but knows of no other ranks."""

    def update(self, *_: Any) -> None: ...

    def compute(self) -> float:
        return 0.0

    def reset(self) -> None: ...


def mean_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the samples of the means over their tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])["logits"]
    each = nn.functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    return (each.sum(1) / (batch["labels"] != transformer.IGNORED).sum(1)).mean()


def packed(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Samples of tensors of no common length."""
    return transformer.collate(samples) | {"all": torch.cat([one["input_ids"] for one in samples])}


def pairs(samples: Any) -> Any:
    """(inputs, targets) of one length."""
    batch = transformer.collate(
        [*samples, {name: torch.zeros(12, dtype=torch.int64) for name in ("input_ids", "labels")}]
    )
    return batch["input_ids"][:-1], batch["labels"][:-1]


def pair_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    total = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
    return total, (targets != transformer.IGNORED).sum()


def pair_accuracy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return (outputs.argmax(-1) == targets).sum(), (targets != transformer.IGNORED).sum()


def chain(options: Settings) -> dict[str, Any]:
    """A model that can be cut into stages, and its pair form."""
    torch.manual_seed(options.seed)
    width = 16
    model = nn.Sequential(
        nn.Embedding(transformer.WORDS, width),
        *(layer for _ in range(2) for layer in (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))),
        nn.Linear(width, transformer.WORDS),
    )
    tensor = {"1": ColwiseParallel(), "3": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    return {
        "model": model,
        "batch_loss": None,
        "loss": pair_loss,
        "collate_fn": pairs,
        "is_classification": False,
        "metrics": {"token_accuracy": pair_accuracy},
        "plan": Plan(shard=("1", "3", "4", "6"), tensor=tensor, pipeline=("3", "6", "7")),
    }


CASES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "tokens": lambda _: {},
    "means": lambda _: {"batch_loss": mean_loss},
    "packed": lambda _: {"batch_loss": mean_loss, "collate_fn": packed},
    "pairs": chain,
    "stages": lambda options: chain(options) | {"loss": None, "batch_loss": transformer.loss},
    "no tensors": lambda _: {"collate_fn": lambda samples: {"texts": [str(one) for one in samples]}},
    "vector": lambda _: {"batch_loss": lambda model, batch: transformer.loss(model, batch)[0] * torch.ones(3)},
    "vector weight": lambda _: {"batch_loss": lambda model, batch: (transformer.loss(model, batch)[0], torch.ones(3))},
    "text metric": lambda _: {"metrics": {"words": lambda outputs, batch: "many"}},
    "counter": lambda _: {"metrics": {"count": Counter()}},
    "no loss": lambda _: {"batch_loss": None},
    "two losses": lambda _: {"loss": pair_loss},
}


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    case: str = option("tokens", "what is trained")
    samples: int = option(512, "of the training data")
    keep_last: bool = option(False, "what fills no batch")


def main(run: Run, options: Options) -> None:
    """Train."""
    task: Task = transformer.task_of(options)
    data = First(task.train_data, options.samples)
    fit(run, replace(task, train_data=data, drop_last=not options.keep_last, **CASES[options.case](options)), options)
