"""Values that a user gives, as JSON has them: to be compared between ranks, and with those of an earlier run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A value of dicts, lists, numbers and texts that is the same for equal values, on every rank and after a round trip through JSON.

    Of what JSON does not have, NumPy's arrays and torch's tensors are lists, sets are sorted, and others are their texts.
    """
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=repr)
    if hasattr(value, "tolist") and type(found := value.tolist()) is not type(value):
        return plain(found)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__qualname__", None)  # of a class or a function
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-f]+", "", str(value))
