"""A default process group of a test's own, made by a file."""

from __future__ import annotations

import contextlib
import os
import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

BACKEND = "gloo"  # what the tests ask for, and what the runner may give another backend for


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what the body does to the environment, torch's level of debugging among it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        dist.set_debug_level_from_env()


@contextlib.contextmanager
def group(file: Path, timeout: float, barrier: Callable[[], None]) -> Iterator[None]:
    """Have the default group in the body. After a failure it is left as it is: the others may never come to its end.

    Args:
        file: where the ranks meet; not there yet.
        timeout: of its operations, in seconds.
        barrier: of all ranks, without the group.
    """
    dist.init_process_group(
        backend=BACKEND,
        init_method=f"file://{file}",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=int(os.environ["RANK"]),
        timeout=timedelta(seconds=timeout),
    )
    barrier()  # a test that skips itself at once must not leave while another rank has yet to join
    skipped = None
    try:
        yield
    except unittest.SkipTest as reason:
        skipped = reason
    barrier()
    dist.destroy_process_group()
    if skipped is not None:
        raise skipped
