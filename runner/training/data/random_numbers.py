"""The random numbers of a step, which are the same in an uninterrupted run and after a resume."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from runner.backends.gpu import is_gpu

_CPU = torch.device("cpu")


def seed_random_numbers(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch (CPU and device), ``random`` and NumPy for one step of one rank, in about 10 µs.

    A checkpoint need not hold the generator states of every rank, because each step is seeded.
    """
    _seed_from(f"{seed} {step} {rank}", device)


@contextmanager
def own_random_numbers(source: str, device: torch.device = _CPU) -> Iterator[None]:
    """Seed all these generators from a text; afterwards they continue as if no number had been drawn inside."""
    states = random_states(device)
    _seed_from(source, device)
    try:
        yield
    finally:
        set_random_states(states, device)


def random_states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of all generators from which a step may draw."""
    of_device = torch.get_device_module(device).get_rng_state(device) if is_gpu(device) else None
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state(), of_device


def set_random_states(states: tuple[Any, ...], device: torch.device) -> None:
    """Continue with states that ``random_states`` has returned."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    if states[3] is not None:
        torch.get_device_module(device).set_rng_state(states[3], device)


def _seed_from(source: str, device: torch.device) -> None:
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    torch.default_generator.manual_seed(number)  # torch.manual_seed() would look for devices of all kinds each time
    if is_gpu(device):
        torch.get_device_module(device).manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)
