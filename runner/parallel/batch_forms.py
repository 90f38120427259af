"""Forms of batches: their description in messages, and the form that a loss or micro-batches need."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.base.errors import UsageError
from runner.parallel.trees import moves_itself, pieces, tensors_in

_LONGEST, _SHOWN = 200, 8  # characters of a described form, and parts of each of its parts


def parts_of(batch: Any) -> tuple[Tensor, Tensor]:
    """Return a batch's inputs and targets, and refuse a batch of another form."""
    if isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        inputs, targets = batch
        if inputs.dim() and targets.dim() and len(inputs) == len(targets):
            return inputs, targets
    raise UsageError(
        f"a batch of the data is {form_of(batch)}, and has to be two tensors, (inputs, targets), of the same length",
        fix="make each sample a pair (input, target), or give the task batch_loss, of (model, batch), for batches of any form",
    )


def with_tensors(batch: Any) -> Any:
    """Return the batch, and refuse one without tensors, of which nothing could be computed on the device."""
    parts = batch if isinstance(batch, list | tuple) else [batch]
    if next(tensors_in(batch), None) is None and not any(map(moves_itself, parts)):
        raise UsageError(
            f"a batch of the data is {form_of(batch)}, and has no tensors",
            fix="make them in the data set or in collate_fn, for example of texts by a tokenizer",
        )
    return batch


def micro_batches(batch: Any, count: int) -> list[tuple[Any, int]]:
    """A batch in so many pieces, each with its number of samples.

    Raises:
        UsageError: its tensors have no common first dimension by which it could be divided.
    """
    try:
        return pieces(batch, count)
    except ValueError:
        raise UsageError(
            f"--micro-batches {count}: the batch {form_of(batch)} cannot be divided by the first dimension of its tensors",
            fix="give all its tensors one entry per sample, or drop --micro-batches",
        ) from None


def form_of(value: Any) -> str:
    """A value's form, in at most 200 characters: ``(float32 [8, 3], {'mask': bool [8]})``."""
    text = _form_of(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _form_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_form_of(one)}' for key, one in itertools.islice(value.items(), _SHOWN))}}}"
    if isinstance(value, list | tuple):
        if value and not any(isinstance(one, Tensor | Mapping | list | tuple) for one in value):
            return f"a {type(value).__name__} of {len(value)} {type(value[0]).__name__}"
        ends = "()" if isinstance(value, tuple) else "[]"
        return f"{ends[0]}{', '.join(map(_form_of, value[:_SHOWN]))}{ends[1]}"
    return f"of type {type(value).__name__}"
