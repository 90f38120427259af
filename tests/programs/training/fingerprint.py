"""A workload of a user's own: trains, and prints a digest of every rank's weights and its losses."""

import hashlib
import json
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.loop import Plan, State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 4
    lr: float = 0.05


def main(run: Run, options: Options) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(333, 1, 12, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (333,), generator=generator)
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    calls = {"steps": 0, "epochs": 0}

    def count_step(state: State) -> None:
        calls["steps"] += 1

    def count_epoch(state: State) -> None:
        calls["epochs"] += 1

    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr, momentum=0.9),
        train_data=TensorDataset(images[:300], labels[:300]),
        test_data=TensorDataset(images[300:], labels[300:]),
        plan=Plan(shard=("0",)),
    )
    result = fit(run, task, options, on_step=[count_step], on_epoch=[count_epoch])
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest()
    print("fingerprint", json.dumps({"rank": run.rank, "digest": digest, **calls, **vars(result)}), flush=True)
