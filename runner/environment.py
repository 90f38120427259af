"""The one place that changes this process's environment. What is set here is seen by MPI, torch and the user's program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def set_variables(variables: Mapping[str, str]) -> None:
    """Set all of them, whatever was there."""
    os.environ.update(variables)


def set_missing(variables: Mapping[str, str]) -> None:
    """Set those that are not there yet: what the user has set is kept."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@contextmanager
def without_variable(name: str) -> Iterator[None]:
    """Unset one in here, and put it back as it was."""
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value
