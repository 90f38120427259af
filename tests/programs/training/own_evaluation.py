"""A loop of one's own that evaluates: which modes are left, and whether all ranks predict and keep the same."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    """Of this script."""

    epochs: int = 1
    batch_size: int = 4
    early: bool = runner.option(False, "call save_if_due() between backward() and step()")


def made() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.BatchNorm1d(8)), nn.BatchNorm1d(8), nn.Linear(8, 1))


def main() -> None:
    run = runner.start(Options.from_args())
    torch.manual_seed(0)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731  # of both
    maker, judge = run.prepare(made(), optimizer=sgd, name="maker"), run.prepare(made(), optimizer=sgd, name="judge")
    judge.module.eval()
    maker.module[1].eval()
    same, seen = torch.ones(3, 4), []
    inputs = torch.randn(32, 4) * 3 + 1
    for x, y in run.batches(TensorDataset(inputs, inputs.sum(1, keepdim=True))):
        seen.append([module.training for model in (maker, judge) for module in (model.module, model.module[1])])
        for model in (maker, judge):
            model.backward(nn.functional.mse_loss(model(x), y))
            if run.settings.early:
                run.save_if_due()
            model.step()
        with suppress(ZeroDivisionError), maker.evaluating() as predict:
            predict(x)
            1 / 0  # noqa: B018  # an evaluation that fails
        for model in (maker, judge):
            if run.is_last_of_epoch:
                with model.evaluating() as predict:
                    own: list[Any] = [predict(same).tolist(), {k: v.tolist() for k, v in model.state_dict().items()}]
                everyone: list[Any] = [None] * run.size
                dist.all_gather_object(everyone, own)
                run.print(
                    f"{model.name}: alike {all(one == own for one in everyone)}, statistics {max(own[1]['1.0.running_mean'])}"
                )
    run.print(f"modes: {sorted({str(one) for one in seen})}")


if __name__ == "__main__":
    main()
