"""What other packages add: their entry points, by group (``runner.launchers``, ``runner.backends``, …)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar

from runner.base.errors import UsageError

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

    def checked(loaded: Any) -> T:
        made = make(loaded)
        if not isinstance(made, kind):
            raise TypeError(f"it is a {type(made).__name__}, not a {kind.__name__}")
        return made

    return _load(point, kind.__name__.lower(), checked)


def load_function(group: str, name: str, what: str) -> Callable[..., Any]:
    """The function that the entry point ``name`` of a group names; ``what`` is what messages call it.

    Raises:
        UsageError: it does not load, or is no function.
    """

    def checked(loaded: Any) -> Callable[..., Any]:
        if not callable(loaded):
            raise TypeError(f"it is a {type(loaded).__name__}, not a function")
        function: Callable[..., Any] = loaded
        return function

    (point, *_) = extensions(group).select(name=name)
    return _load(point, what, checked)


def _load(point: EntryPoint, what: str, checked: Callable[[Any], T]) -> T:
    try:
        return checked(point.load())
    except Exception as error:  # another package's code may raise anything
        raise UsageError(
            f"the {what} {point.name} of another package cannot be loaded from {point.value}: {type(error).__name__}: {error}",
            fix="fix or uninstall that package",
        ) from error


@functools.cache
def _installed() -> Any:
    return entry_points()  # reads a file of every installed package, which takes long on a network file system
