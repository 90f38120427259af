"""The ranks' places in a stream that tells them, in a checkpoint: plain values, as all that is not a parameter's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.json_codec import decode, encode
from runner.training.data.feed import Feed
from runner.training.run import Run


def states_of(run: Run, feed: Feed) -> list[Any] | None:
    """Return, on rank 0, the state of each rank's feed for a resume; None on others, or if feeds have no state. Collective.

    Raises:
        UsageError: a rank's state holds what JSON and tensors cannot.
    """
    if not feed.is_stateful:
        return None
    own, problem = None, None
    try:
        own = _plain(feed.state())
    except RunnerError as error:
        problem = error
    run.agree(problem)
    if feed.is_shared:  # rank 0's is that of all
        return [own] if run.is_main else None
    return run.gather(own)


def load_states(run: Run, feed: Feed, states: list[Any] | None) -> None:
    """Take up an epoch by what a checkpoint has, which rank 0 has read. Collective.

    Raises:
        UsageError: it was written by another number of ranks or of data loader processes.
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
        feed.load_state(decode(own, tensors))


def _plain(state: Any) -> list[Any]:
    """A state, and the tensors in it by name, as JSON can hold them.

    Raises:
        UsageError: it holds something else.
    """
    tensors: dict[str, Tensor] = {}
    own = encode(state, "the data's state", tensors)
    return [own, {name: [str(one.dtype).removeprefix("torch."), one.tolist()] for name, one in tensors.items()}]
