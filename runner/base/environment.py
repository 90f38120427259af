"""The one place that changes this process's environment, which MPI, torch and the user's program read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


def set_variables(variables: Mapping[str, str]) -> None:
    """Set all of these variables, also those that have a value."""
    os.environ.update(variables)


def replace_variables(variables: Mapping[bytes, bytes]) -> None:
    """Have these variables, and no others."""
    for name in os.environb.keys() - variables.keys():
        del os.environb[name]
    os.environb.update(variables)


def set_missing(variables: Mapping[str, str]) -> None:
    """Set those of these variables that are not set yet; what the user has set is kept."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def unset_variables(names: Iterable[str]) -> None:
    """Unset those of these variables that are set."""
    for name in names:
        os.environ.pop(name, None)
