"""Trainings on torchdata's StatefulDataLoader, which write down the samples of each step; one rank may be killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import State

LENGTH, BATCH = 46, 4  # of an epoch on two ranks the sixth step is a short one


def sample(number: int) -> dict[str, Any]:
    return {"number": number, "x": torch.tensor([number / LENGTH])}


class Numbered(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, number: int) -> Any:
        return sample(number)


class Stream(IterableDataset[Any]):
    """As torchdata's documentation has it: each rank and worker has samples of its own, and it tells its place."""

    shards_itself = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.place = rank, size, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        own = range(self.rank * workers + worker, LENGTH, self.size * workers)
        while self.place < len(own):
            self.place += 1
            yield sample(own[self.place - 1])
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def loader_of(case: str, run: Run, workers: int) -> DataLoader[Any]:
    if case == "shuffled by torch":
        return DataLoader(Numbered(), BATCH, shuffle=True)
    rank, size = run.data_rank, run.data_size
    if case == "stream":
        return StatefulDataLoader(Stream(rank, size), BATCH, num_workers=workers)
    if case == "distributed":
        sampler = StatefulDistributedSampler(Numbered(), size, rank)
        return StatefulDataLoader(Numbered(), BATCH, sampler=sampler, num_workers=workers)
    return StatefulDataLoader(Numbered(), BATCH, shuffle=True, num_workers=workers)


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 2
    lr: float = 0.01
    case: str = "shuffled"
    loader_workers: int = 0
    killed_at: int = 0  # the step after which rank 1 is; 0: none


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    seen: list[int] = []

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        seen[:] = batch["number"].tolist()
        return nn.functional.mse_loss(model(batch["x"]), batch["x"])

    def write_down(state: State) -> None:
        with open(options.checkpoint_dir / f"seen-{run.rank}", "a") as file:
            file.write(json.dumps([state.position.step, seen]) + "\n")
        if state.position.step == options.killed_at and run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    task = Task(
        model=nn.Linear(1, 1),
        batch_loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=loader_of(options.case, run, options.loader_workers),
    )
    fit(run, task, options, on_step=[write_down])
