"""How many bytes a rank sends in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.tools.costs.collectives import bytes_sent
from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import TorchDispatchMode


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes that are sent in its context, by whatever part of torch.

    Attributes:
        sent: bytes, so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and run it."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # such as a DTensor: it calls again with what it holds
        self.sent += bytes_sent(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def count_sent() -> Iterator[_Counter]:
    """Count what is sent; compiled parts of a model run as they are written."""
    with not_compiled(), _Counter() as counter:
        yield counter
