"""Metrics of torchmetrics, which count by themselves: what they have found on all data-parallel ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.batch_forms import form_of
from runner.parallel.task import members_of
from runner.training.run import Run


def results_of(name: str, metric: Any, run: Run) -> dict[str, float]:
    """The numbers of a metric, or of a collection's, by name. Collective.

    Raises:
        UsageError: one is no number, or cannot be gathered from the ranks.
    """
    for one in members_of(metric):
        one.process_group = run.group()
        _fill_lists(name, one, run)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method of metric")  # on a rank that has no test data
        value = metric.compute()
    found = {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    for key, one in found.items():
        if not isinstance(one, Real) and not (isinstance(one, Tensor) and one.numel() == 1):
            raise UsageError(
                f"the metric {key} is {form_of(one)}, and has to be one number",
                fix="let it average, for example by average='macro'",
            )
    return {key: float(one) for key, one in found.items()}


@raised_on_all_ranks()
def _fill_lists(name: str, metric: Any, run: Run) -> None:
    """Give each list that the metric keeps as many tensors on all ranks, as torchmetrics gathers one after the other. Collective.

    A rank that has seen fewer batches, or none, gets empty ones.

    Raises:
        UsageError: they are scalars, of which none is empty.
    """
    own = _lists_of(metric)
    if run.data_size == 1 or not own:
        return
    group = run.group()
    counts = bounds([len(state) for state in own.values()], group)
    having = [run.rank if len(state) == most else None for state, (_, most) in zip(own.values(), counts, strict=True)]
    for (key, state), (least, most), (owner, _) in zip(own.items(), counts, bounds(having, group), strict=True):
        if least == most:
            continue
        form: list[Any] = [(state[0].dtype, state[0].shape) if state else None]
        dist.broadcast_object_list(form, src=owner, group=group)
        dtype, shape = form[0]
        if not shape:
            raise UsageError(
                f"the metric {name} keeps single numbers ({key}), and the ranks have different counts of them, which torchmetrics cannot gather",
                fix="give a function of (outputs, targets) that returns a pair (sum, weight)",
            )
        empty = torch.empty((0, *shape[1:]), dtype=dtype, device=run.device)
        state.extend([empty] * (most - len(state)))


def _lists_of(metric: Any) -> dict[str, list[Tensor]]:
    """Return the metric's states that are lists of tensors."""
    return {
        key: state
        for key, state in getattr(metric, "metric_state", {}).items()
        if isinstance(state, list) and all(isinstance(one, Tensor) for one in state)
    }
