"""Tests of the machinery in place of torch's: what can go wrong with a test, done on purpose."""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from tests.campaigns.conformance.group import environment_kept, group
from tests.polling import poll_until


def sums(rank: int) -> None:
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    size = dist.get_world_size()
    assert total.item() == size * (size - 1) / 2


def is_alone_in_its_environment(rank: int) -> None:
    assert "LEFT_BEHIND" not in os.environ
    os.environ["LEFT_BEHIND"] = "1"
    sums(rank)


def is_skipped(rank: int) -> None:
    raise unittest.SkipTest("not for this machine")


def raises_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("on purpose\nand in two lines")
    sums(rank)  # which waits for rank 1


def hangs(rank: int) -> None:
    time.sleep(3600)


def ends_the_process(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    sums(rank)


_BY_NAME: dict[str, Callable[[int], None]] = {
    "sums": sums,
    "is_alone_in_its_environment": is_alone_in_its_environment,
    "is_skipped": is_skipped,
    "raises_on_rank_1": raises_on_rank_1,
    "hangs": hangs,
    "ends_the_process": ends_the_process,
    # Behind those that end the job: what comes after a failure runs, and in a clean environment.
    "sums_again": sums,
    "is_alone_again": is_alone_in_its_environment,
}


def names() -> list[str]:
    return list(_BY_NAME)


def limit(name: str, usual: float) -> float:
    return usual


def run(name: str, rank: int, folder: Path) -> None:
    with environment_kept(), group(folder / "group", 60, lambda: _meet(folder / "barrier", rank)):
        _BY_NAME[name](rank)


def _meet(folder: Path, rank: int) -> None:
    """A barrier by files. The count of a rank's files says how often it was here."""
    mine = len(list(folder.glob(f"{rank}-*")))
    (folder / f"{rank}-{mine}").touch()
    ranks = int(os.environ["WORLD_SIZE"])
    poll_until(lambda: len(list(folder.glob(f"*-{mine}"))) == ranks, 30, "all ranks have come to the barrier")
