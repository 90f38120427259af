"""A rank's batches, and the place in them that a checkpoint keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.json_codec import decode, encode
from runner.training.run import Run

# (whether this rank has a batch, its samples) → whether all ranks have one, and the samples of all data-parallel ranks. Collective.
Agree = Callable[[bool, int], "tuple[bool, int]"]


class Batch(NamedTuple):
    """A rank's part of a step.

    Attributes:
        value: the batch as the loader or the collate function made it. A rank without samples in this step has a batch that does not
            count, because it takes part in what is collective.
        samples: the number of samples of ``value`` that count on this rank.
        all_samples: the number of samples of all data-parallel ranks in this step. The mean over all of them is the sum over ranks of
            each rank's mean times ``samples / all_samples``.
        used: how much of the epoch all ranks together have used after this step.
        is_last: whether the step is the epoch's last.
    """

    value: Any
    samples: int
    all_samples: int
    used: int
    is_last: bool


class Feed(ABC):
    """Gives batches, as many on all ranks.

    Attributes:
        is_even: whether each rank has a batch of the usual size in every step in which all ranks together have the usual number.
        is_stateful: whether a checkpoint keeps the feed's state.
        is_shared: whether the state is the same on all ranks and fits any number of them.
        state: this rank's place after the batch that was given last: plain values, among them ``epoch``.
        resumed: the state of a checkpoint; ``batches`` continues from it in its epoch, and raises a UsageError if it does not fit.
    """

    is_even: bool = True
    is_stateful: bool = False
    is_shared: bool = False
    state: Any = None
    resumed: Any = None

    @abstractmethod
    def steps(self, used: int) -> int | None:
        """Return how many steps are left when this much of an epoch is used; None if that is not known."""

    @abstractmethod
    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        """Return the batches that are left of an epoch of which this much is used. Collective, for some feeds at each batch."""


def states_of(run: Run, feed: Feed) -> list[Any] | None:
    """Return, on rank 0, the state of each rank's feed for a resume; None on others, or if feeds have no state. Collective.

    Raises:
        UsageError: a rank's state holds what JSON and tensors cannot.
    """
    if not feed.is_stateful:
        return None
    tensors: dict[str, Tensor] = {}
    with run.agreeing():
        plain = encode(feed.state, "the data's state", tensors)
    own = [plain, {name: [str(one.dtype).removeprefix("torch."), one.tolist()] for name, one in tensors.items()}]
    if feed.is_shared:
        return [own] if run.is_main else None
    return run.gather(own)


def load_states(run: Run, feed: Feed, states: list[Any] | None) -> None:
    """Give the feed the state that it had at a checkpoint, which rank 0 has read. Collective.

    Raises:
        UsageError: another number of ranks wrote the checkpoint.
    """
    if not feed.is_stateful or not (count := run.on_main(lambda: len(states or []))):
        return
    with raised_on_all_ranks():
        if not feed.is_shared and count != run.size:
            raise UsageError(
                f"--resume: {count} ranks had their own places in the data, and here are {run.size}",
                fix=f"resume on {count} ranks, or from a checkpoint at the end of an epoch",
            )
        own, parts = run.on_main(lambda: (states or [])[0]) if feed.is_shared else run.scatter(states)
        tensors = {name: torch.tensor(values, dtype=getattr(torch, dtype)) for name, (dtype, values) in parts.items()}
        feed.resumed = decode(own, tensors)
