"""Small trainings with something odd in their data, their loss, their optimizer, or on one rank."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, random_split

from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


class Samples(Dataset[Any]):
    """So many samples, which a function makes of their numbers."""

    def __init__(self, make: Callable[[int], Any], length: int = 64) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class FirstClass(nn.Module):
    """Predicts class 0 of three at every place: [batch, places] → [batch, 3, places]. Its batch norm counts the calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shift = nn.BatchNorm1d(1), nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs[:, None]) * 1e-9 + self.shift[:, None]


class Rotated(nn.Module):
    """Has a complex buffer, as rotary embeddings have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rotation", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.view_as_real(torch.view_as_complex(inputs.view(-1, 4, 2)) * self.rotation).flatten(1))


class Absolute(nn.Module):
    """Takes complex numbers by complex weights to real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, dtype=torch.complex64))

    def forward(self, inputs: Tensor) -> Tensor:
        assert inputs.dtype == self.weight.dtype == torch.complex64
        return (inputs @ self.weight).abs()


class Asking(torch.optim.SGD):
    """Asks for a closure when it is called without, as a sharpness-aware optimizer does."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "Asking requires a closure"
        return super().step(closure)


def classes(count: int, *shape: int) -> Tensor:
    return torch.arange(count).reshape(-1, *[1] * len(shape)).expand(count, *shape) % 3


def task_of(case: str, run: Run, lr: float) -> Task:
    numbers, own = torch.randn(64, 8), torch.Generator().manual_seed(run.rank)
    plain = Task(
        model=nn.Linear(8, 3),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        train_data=TensorDataset(numbers, classes(64)),
    )
    places = TensorDataset(torch.randn(32, 4), torch.tensor([[0, 0, 2, -100]] * 32))
    whole: dict[str, Callable[[], Task]] = {
        "plain": lambda: plain,
        "length": lambda: replace(
            plain, train_data=TensorDataset(numbers[: 64 - 16 * run.rank], classes(64)[: 64 - 16 * run.rank])
        ),
        "test length": lambda: replace(plain, test_data=plain.train_data if run.rank == 0 else None),
        "split": lambda: replace(plain, train_data=random_split(plain.train_data, [48, 16], own)[0]),
        "augmented": lambda: replace(plain, train_data=Samples(lambda i: (torch.randn(8, generator=own), i % 3))),
        "parameters": lambda: replace(plain, model=nn.Sequential(*[nn.Linear(8, 8)] * run.rank, nn.Linear(8, 3))),
        "setting": lambda: replace(plain, settings={"width": 8 + run.rank}),
        "dict": lambda: replace(plain, train_data=Samples(lambda i: {"x": numbers[i], "y": i % 3})),
        "three parts": lambda: replace(plain, train_data=TensorDataset(numbers, classes(64), torch.ones(64))),
        "nested": lambda: replace(plain, train_data=Samples(lambda i: ((numbers[i], numbers[i]), i % 3))),
        "texts": lambda: replace(plain, train_data=Samples(lambda i: (numbers[i], "abc"[i % 3]))),
        "ragged": lambda: replace(plain, train_data=Samples(lambda i: (torch.ones(1 + i), i % 3))),
        "odd test": lambda: replace(plain, test_data=TensorDataset(numbers)),
        "many losses": lambda: replace(plain, loss=lambda *pair: nn.functional.cross_entropy(*pair, reduction="none")),
        "closure": lambda: replace(plain, optimizer=torch.optim.LBFGS),
        "asks for a closure": lambda: replace(plain, optimizer=lambda parameters: Asking(parameters, lr=lr)),
        "no optimizer": lambda: replace(plain, optimizer=list),  # type: ignore[arg-type,return-value]  # as users do
        "places": lambda: replace(plain, model=FirstClass(), train_data=places, test_data=places),
        "soft": lambda: replace(
            plain, train_data=TensorDataset(numbers, torch.softmax(numbers[:, :3], 1)), test_data=None
        ),
        "rotated": lambda: replace(plain, model=Rotated()),
        "complex": lambda: replace(
            plain, model=Absolute(), train_data=TensorDataset(numbers + 1j * numbers, classes(64))
        ),
    }
    task = whole[case]()
    return replace(task, test_data=task.train_data) if case in ("soft", "rotated", "complex") else task


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    batch_size: int = 8
    epochs: int = 1
    lr: float = 0.1
    case: str = "plain"


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    fit(run, task_of(options.case, run, options.lr), options)
