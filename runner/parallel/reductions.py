"""Losses of torch whose value for a batch is no mean over its samples, so that means over batches and ranks are none either."""

from __future__ import annotations

import functools
from typing import Any

from runner.base.errors import UsageError

_BY_CLASSES = {"CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss"}  # they divide by weights
_GIVEN = ("reduction", "weight", "ignore_index")
_IGNORED = -100  # torch's default


def check_mean(what: str, loss: Any) -> None:
    """Refuse a loss or metric of torch, a module or a partial function, that is no mean over a batch's samples.

    Such are a sum, a value for each sample, and what divides by classes' weights or by the targets that count.
    """
    is_partial = isinstance(loss, functools.partial)
    kind = loss.func if is_partial else type(loss)
    if not (getattr(kind, "__module__", None) or "").startswith("torch.nn."):
        return
    given = loss.keywords if is_partial else {name: getattr(loss, name, None) for name in _GIVEN}
    reduction, weight, ignored = map(given.get, _GIVEN)
    function, more, number = _BY_CLASSES.get(kind.__name__, kind.__name__), "", ""
    if reduction in ("sum", "none"):
        more = f"reduction={reduction!r}"
    elif function in _BY_CLASSES.values() and weight is not None:
        more, number = "weight=w", "w[targets].sum()"
    elif function in _BY_CLASSES.values() and ignored not in (None, _IGNORED):
        more, number = f"ignore_index={ignored}", f"(targets != {ignored}).sum()"
    if more:
        pair = f": lambda outputs, targets: (F.{function}(outputs, targets, {more}, reduction='sum'), {number})"
        raise UsageError(
            f"the task's {what} is {kind.__name__} with {more}, of which means over batches and ranks are none over samples",
            fix=f"{'' if number else 'take the mean, or '}return (sum, weight){pair if number else ''}",
        )
