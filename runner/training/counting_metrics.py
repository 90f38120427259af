"""Metrics of torchmetrics, which count by themselves: what they have found on all data-parallel ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
    """Extend the lists of tensors that a metric keeps by empty ones, to the same length on all ranks. Collective.

    torchmetrics gathers such tensors one after the other, and a rank may have seen fewer batches than others, or none.

    Raises:
        UsageError: the tensors are scalars, which cannot be empty.
    """
    lists = {key: state for key, state in getattr(metric, "metric_state", {}).items() if isinstance(state, list)}
    if run.data_size == 1 or not lists:
        return
    own = {
        key: (len(state), (state[0].dtype, state[0].shape) if state and isinstance(state[0], Tensor) else None)
        for key, state in lists.items()
    }
    everyone: list[Any] = [None] * run.data_size
    dist.all_gather_object(everyone, own, group=run.group())
    for key, state in lists.items():
        forms = [one[key] for one in everyone]
        most, form = max(forms, key=lambda one: one[0])
        if all(count == most for count, _ in forms):
            continue
        dtype, shape = form or (None, ())
        if not shape:
            raise UsageError(
                f"the metric {name} keeps single numbers ({key}), and the ranks have different counts of them, which torchmetrics cannot gather",
                fix="give a function of (outputs, targets) that returns a pair (sum, weight)",
            )
        state.extend([torch.empty((0, *shape[1:]), dtype=dtype, device=run.device)] * (most - len(state)))
