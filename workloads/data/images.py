"""Labelled images in memory: a TensorDataset of (float images in -1..1, int64 labels)."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

from runner.base.errors import UsageError
from runner.training.places import once_per_file_system
from runner.training.run import Run
from runner.training.settings import Settings

FAKE_IMAGES = 4096
_DIGITS = Path(__file__).with_name("digits.csv.gz")  # digits.txt tells whose they are
_PATIENCE = 15.0  # seconds without data after which a download is given up

Split = tuple[TensorDataset, TensorDataset]  # train, test


def mnist(run: Run, options: Settings) -> Split:
    """[n, 1, 28, 28] images of digits: ``--data`` mnist, digits, fake, or auto (mnist if available, else digits).

    Raises:
        UsageError: MNIST was asked for and is not available.
    """
    others = {"digits": digits, "fake": lambda: fake((1, 28, 28))}
    return _load(run, options, "MNIST", others, "training on the package's own 1,797 digits (--data chooses)")


def cifar10(run: Run, options: Settings) -> Split:
    """[n, 3, 32, 32] images: ``--data`` cifar10, fake, or auto (cifar10 if available, else fake).

    Raises:
        UsageError: CIFAR10 was asked for and is not available.
    """
    others = {"fake": lambda: fake((3, 32, 32))}
    return _load(run, options, "CIFAR10", others, "training on random images, which teach nothing (--data chooses)")


def _load(run: Run, options: Settings, name: str, others: dict[str, Callable[[], Split]], otherwise: str) -> Split:
    """torchvision's data set of this name, or one of the others. ``auto`` falls back to the first of the others."""
    if options.data in others:
        return others[options.data]()
    try:
        return _torchvision(run, options, name)
    except UsageError as error:
        if options.data != "auto":
            raise
        run.print(f"{error}: {otherwise}")
    return next(iter(others.values()))()


def digits() -> Split:
    """UCI's 1,797 handwritten digits of 8 × 8 pixels, enlarged to [n, 1, 28, 28]; 1,437 to train, 360 to test.

    They are beside this file, so neither a network nor another package is needed.
    """
    lines = gzip.decompress(_DIGITS.read_bytes()).decode().splitlines()
    table = torch.tensor([list(map(int, line.split(","))) for line in lines])
    images, labels = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16, table[:, -1]  # pixels are 0..16
    images = interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = _normalised(images[order]), labels[order]
    cut = len(labels) * 4 // 5
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def fake(shape: tuple[int, int, int]) -> Split:
    """Random images of this shape, the same at every call: 4,096 to train and 512 to test, kept in memory.

    (torchvision's FakeData makes them one by one, which takes two seconds of each rank.)
    """

    def made(count: int, seed: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(seed)
        images = torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8)
        return TensorDataset(_normalised(images.float() / 255), torch.randint(10, (count,), generator=draw))

    return made(FAKE_IMAGES, 0), made(512, 1)


def _torchvision(run: Run, options: Settings, name: str) -> Split:
    """A data set of torchvision's. If it is missing, one rank per shared file system downloads it."""
    kind = getattr(run.load("torchvision", needed_by=name).datasets, name)
    folder = options.data_dir

    def there() -> bool:
        try:
            kind(str(folder), download=False)
        except RuntimeError:
            return False
        return True

    def download() -> None:
        if there():
            return
        try:
            with _bounded_waits():
                kind(str(folder), download=True)
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[-1].strip("<>").removeprefix("urlopen error ")
            raise UsageError(f"{name} is not in {folder} and cannot be downloaded ({reason})") from None

    if run.sum(0 if there() else 1)[0]:
        run.print(f"looking for {name} in {folder}, else downloading it")
        once_per_file_system(run, folder, "--data-dir", download)
    return _in_memory(kind(str(folder), train=True)), _in_memory(kind(str(folder), train=False))


def _in_memory(data: Any) -> TensorDataset:
    images = torch.as_tensor(data.data)
    images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
    return TensorDataset(_normalised(images.float() / 255), torch.as_tensor(data.targets).long())


def _normalised(images: Tensor) -> Tensor:
    """0..1 → -1..1."""
    return (images - 0.5) / 0.5


@contextmanager
def _bounded_waits() -> Iterator[None]:
    """Give downloads a time limit: torchvision has none, and would hang behind a firewall that drops packets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
