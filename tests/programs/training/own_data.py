"""Trainings on data as people have it: loaders, samplers and streams of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

LENGTH, GLOBAL_BATCH = 96, 8
INPUTS = torch.randn(LENGTH, 8, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(LENGTH) % 3


class Stream(IterableDataset[Any]):
    """The samples in their order; ``rank`` of ``size`` ranks and its workers take theirs themselves."""

    def __init__(self, rank: int = 0, size: int = 1, ends: int = LENGTH) -> None:
        self.rank, self.size, self.ends = rank, size, ends
        self.shards_itself = size > 1
        self.place = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.shards_itself else None
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        own = list(range(self.rank * workers + worker, self.ends, self.size * workers))
        start, self.start = self.start, 0
        for self.place in range(start + 1, len(own) + 1):
            number = own[self.place - 1]
            yield INPUTS[number] + torch.rand(8) / 100, CLASSES[number]


class Telling(Stream):
    """It tells its place, and reads nothing twice."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "tensor": torch.tensor([self.place])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].tolist() == [state["place"]]
        self.start = state["place"]


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, number: int) -> Any:
        return INPUTS[number], CLASSES[number]


class Loader:
    """Gives batches of its own order and sizes, as loaders do that are no torch DataLoader."""

    def __init__(self, seed: int = 2) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.seed))
        for numbers in order.split([5, 3, 8, 4] * 4 + [16]):
            yield INPUTS[numbers] + torch.rand(8) / 100, CLASSES[numbers]


class OwnRandomNumbers(Sampler[int]):
    """Draws by a generator of its own, which is another one on each rank."""

    def __init__(self, rank: int) -> None:
        self.own = torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH, generator=self.own).tolist()

    def __len__(self) -> int:
        return LENGTH


class Opening(Dataset[Any]):
    """Opens its file at the first sample, as for processes that each have it for themselves, and reads it in several parts."""

    path, file = "", None

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, number: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)  # type: ignore[assignment]  # stays open
        self.file.seek(number * 16)  # type: ignore[attr-defined]
        found = [self.file.read(1)[0] for _ in range(16)]  # type: ignore[attr-defined]
        assert found == [number] * 16, f"sample {number} was read as {found}"
        return INPUTS[number], CLASSES[number]


def opening(run: Run) -> Opening:
    Opening.path = run.on_main(lambda: tempfile.NamedTemporaryFile(delete=False).name)  # it is read later
    if run.is_main:
        Path(Opening.path).write_bytes(bytes(number for number in range(LENGTH) for _ in range(16)))
    run.agree(None)
    return Opening()


def doubled(samples: list[Any]) -> Any:
    inputs, targets = default_collate(samples)
    return 2 * inputs, targets


def data_of(case: str, run: Run) -> Any:
    each, rank, size = GLOBAL_BATCH // run.data_size, run.data_rank, run.data_size
    data = TensorDataset(INPUTS, CLASSES)
    weights = [1.0 + number % 5 for number in range(LENGTH)]
    whole: dict[str, Any] = {
        "plain": Plain,
        "weighted": lambda: DataLoader(data, each, sampler=WeightedRandomSampler(weights, LENGTH), drop_last=True),
        "shuffled": lambda: DataLoader(data, each, shuffle=True, num_workers=1, collate_fn=doubled),
        "batches": lambda: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False)),
        "distributed": lambda: DataLoader(data, each, sampler=DistributedSampler(data, size, rank)),
        "of other ranks": lambda: DataLoader(data, each, sampler=DistributedSampler(data, 8, 0)),
        "lengths": lambda: DataLoader(
            data, each, sampler=WeightedRandomSampler(weights[: LENGTH - 8 * rank], LENGTH - 8 * rank)
        ),
        "stream": Stream,
        "telling": Telling,
        "streamed": lambda: DataLoader(Telling(), each, num_workers=2),
        "shards": lambda: Stream(rank, size),
        "shards and tells": lambda: Telling(rank, size),
        "uneven": lambda: Stream(rank, size, LENGTH - 40 * rank),
        "loader": Loader,
        "other loaders": lambda: Loader(rank),
        "own random numbers": lambda: DataLoader(data, each, sampler=OwnRandomNumbers(rank), drop_last=True),
        "opening": lambda: DataLoader(opening(run), each, shuffle=True, num_workers=2),
    }
    return whole[case]()


class Half:
    def __iter__(self) -> Iterator[Any]:
        return zip(INPUTS[48:].split(5), CLASSES[48:].split(5), strict=True)


TESTS: dict[str, Any] = {
    "whole": lambda: DataLoader(TensorDataset(INPUTS, CLASSES), 7),
    "half": lambda: DataLoader(TensorDataset(INPUTS, CLASSES), 7, sampler=SubsetRandomSampler(range(48, LENGTH))),
    "half itself": lambda: TensorDataset(INPUTS[48:], CLASSES[48:]),
    "half as batches": Half,
    "opening": Opening,
}


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    batch_size: int = 4
    epochs: int = 2
    lr: float = 0.05
    dtype: str = "float64"
    case: str = "plain"
    test: str = "whole"


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    model = nn.Linear(8, 3)
    fit(
        run,
        Task(
            model=model,
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
            train_data=data_of(options.case, run),
            test_data=TESTS[options.test](),
        ),
        options,
    )
