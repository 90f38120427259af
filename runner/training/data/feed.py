"""A rank's batches of a training or an evaluation, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# (whether this rank has a batch, its samples) → whether all ranks have one, and the samples of all data-parallel ranks. Collective.
Agree = Callable[[bool, int], "tuple[bool, int]"]


class Batch(NamedTuple):
    """A rank's part of a step.

    Attributes:
        value: what the loader or the collate function has made: any tree of tensors. A rank that has no samples in this step has a
            batch that does not count, so that it can take part in what is collective.
        samples: how many samples of ``value`` count on this rank; 0 if it is one that does not.
        all_samples: how many all data-parallel ranks have in this step: the mean over all of them is this rank's mean times
            ``samples / all_samples``, summed over the ranks.
        used: how much of the epoch is used after it, by all ranks together.
        is_last: whether it is the epoch's last.
    """

    value: Any
    samples: int
    all_samples: int
    used: int
    is_last: bool


class Feed(ABC):
    """Gives batches, as many on all ranks.

    Attributes:
        is_even: whether each rank has a batch of the usual number of samples wherever all together have that of so many.
        is_shared: whether its state is the same on all ranks, and fits any number of them.
    """

    is_even: bool = True
    is_shared: bool = False

    @property
    def is_stateful(self) -> bool:
        """Whether a checkpoint keeps a state of it, with which an epoch is taken up in its middle."""
        return False

    @abstractmethod
    def steps(self, used: int) -> int | None:
        """Return how many steps are left when so much of an epoch is used; None if that is not known."""

    @abstractmethod
    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        """Return the batches that are left of an epoch of which so much is used. Collective, for some feeds at each batch."""

    def state(self) -> Any:
        """Return what a checkpoint keeps of this rank's place in the epoch, after the batch that was given last: plain values."""
        return None

    def load_state(self, state: Any) -> None:
        """Take up the epoch where it was then. Call it before ``batches``, which raises a UsageError if the state does not fit."""
        raise NotImplementedError  # never asked of a feed that is not stateful, and those that are have their own
