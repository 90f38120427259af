"""Evaluations by metrics of torchmetrics, printed to the last digit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import Metric, MetricCollection, SpearmanCorrCoef
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score
from torchmetrics.retrieval import RetrievalMAP

from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 2  # of which the model stays the same, so that only what the metrics do differs
    samples: int = 301
    scalars: bool = False  # one more metric


class Ranks(SpearmanCorrCoef):
    """How well the first output ranks the classes."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(preds[:, 0], target.to(preds.dtype))


class Found(RetrievalMAP):
    """How far in front the samples of class 0 are; it keeps lists that are not concatenated."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(preds[:, 0], target == 0, torch.zeros_like(target))


class Scalars(Metric):
    """Keeps a number for each sample, as those of texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("each", default=[], dist_reduce_fx=None)
        self.each: list[Tensor]

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.each += [*preds[:, 0]]

    def compute(self) -> Tensor:
        return torch.stack(self.each).mean()


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    inputs, classes = torch.randn(1024, 8), torch.arange(1024) % CLASSES
    more: dict[str, Metric] = {"scalars": Scalars()} if options.scalars else {}
    task = Task(
        model=nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        train_data=TensorDataset(inputs[:64], classes[:64]),
        test_data=TensorDataset(inputs[: options.samples], classes[: options.samples]),
        metrics={
            "right": MulticlassAccuracy(CLASSES, average="micro"),
            "area": MulticlassAUROC(CLASSES),
            "ranks": Ranks(),
            "found": Found(),
            "both": MetricCollection(
                {"f1": MulticlassF1Score(CLASSES), "binned": MulticlassAUROC(CLASSES, thresholds=20)}
            ),
            **more,
        },
        plan=Plan(shard=("0", "2")),
    )
    result = fit(run, task, options)
    run.print(" ".join(f"{name}={value!r}" for name, value in sorted(result.metrics.items())))
