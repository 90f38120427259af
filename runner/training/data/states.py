"""The ranks' places in a stream that tells them, in a checkpoint: plain values, as all that is not a parameter's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.json_codec import decode, encode
from runner.training.data.feed import Feed
from runner.training.run import Run


def states_of(run: Run, feed: Feed) -> list[Any] | None:
    """What each rank's feed needs to be taken up here; None if it needs nothing. Collective.

    Raises:
        UsageError: a rank's state holds what JSON and tensors cannot.
    """
    if not feed.is_stateful:
        return None
    own, tensors, problem = None, dict[str, Tensor](), None
    try:
        own = encode(feed.state(), "the data's state", tensors)
    except RunnerError as error:
        problem = error
    run.agree(problem)
    parts = {name: [str(one.dtype).removeprefix("torch."), one.tolist()] for name, one in tensors.items()}
    found: list[Any] = [[own, parts]] * run.size
    if run.size > 1:
        dist.all_gather_object(found, found[0])
    return found


def load_states(run: Run, feed: Feed, states: list[Any] | None) -> None:
    """Take up an epoch by what a checkpoint has. Collective.

    Raises:
        UsageError: it was written by another number of ranks or of data loader processes.
    """
    if states is None or not feed.is_stateful:
        return
    with raised_on_all_ranks():
        if len(states) != run.size:
            raise UsageError(
                f"--resume: {len(states)} ranks had their own places in the data, and here are {run.size}",
                fix=f"resume on {len(states)} ranks, or from a checkpoint at the end of an epoch",
            )
        own, parts = states[run.rank]
        tensors = {name: torch.tensor(values, dtype=getattr(torch, dtype)) for name, (dtype, values) in parts.items()}
        feed.load_state(decode(own, tensors))
