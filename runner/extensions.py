"""What other packages add: their entry points, by group (``runner.launchers``, ``runner.backends``, …)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar

from runner.errors import UsageError

T = TypeVar("T")


def extensions(group: str) -> EntryPoints:
    """The entry points of a group, of all packages that are installed."""
    found: EntryPoints = _installed().select(group=group)
    return found


def load_extension(point: EntryPoint, kind: type[T], make: Callable[[Any], Any] = lambda loaded: loaded) -> T:
    """What an entry point names, or what ``make`` makes of it.

    Raises:
        UsageError: it does not load, or is not of this kind.
    """
    try:
        made = make(point.load())
        problem = "" if isinstance(made, kind) else f"it is a {type(made).__name__}, not a {kind.__name__}"
    except Exception as error:  # another package's code may raise anything
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise UsageError(
            f"the {kind.__name__.lower()} {point.name} of another package cannot be loaded from {point.value}: {problem}",
            fix="mend that package, or remove it",
        )
    loaded: T = made
    return loaded


@functools.cache
def _installed() -> Any:
    return entry_points()  # reads a file of every installed package, which takes long on a network file system
