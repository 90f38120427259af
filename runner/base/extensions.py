"""Entry points of other packages, by group (``runner.launchers``, ``runner.backends``, …)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.base.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_SECTION = b"[runner."  # how a group of the runner's begins in a file of entry points


@functools.cache
def extensions(group: str) -> Sequence[EntryPoint]:
    """The entry points of a group, of all packages that are installed."""
    return tuple(_installed().select(group=group)) if any(map(_names_a_group, sys.path)) else ()


def load_function(group: str, name: str, what: str) -> Callable[..., Any]:
    """The function that the entry point ``name`` of a group names; ``what`` is what messages call it.

    Raises:
        UsageError: it does not load, or is no function.
    """
    point = next(point for point in extensions(group) if point.name == name)
    kind: Any = Callable  # which isinstance() takes
    function: Callable[..., Any] = load_extension(point, what, kind)
    return function


def load_extension(
    point: EntryPoint, what: str, kind: type[T], make: Callable[[Any], Any] = lambda loaded: loaded
) -> T:
    """Return the object that an entry point names, or what ``make`` makes of it.

    Raises:
        UsageError: it does not load, or is not of this kind.
    """
    try:
        made = make(point.load())
        if isinstance(made, kind):
            return made
        raise TypeError(f"it is a {type(made).__name__}, no {what}")
    except Exception as error:  # another package's code may raise anything
        raise UsageError(
            f"the {what} {point.name} of another package cannot be loaded from {point.value}: {type(error).__name__}: {error}",
            fix="fix or uninstall that package",
        ) from error


@functools.cache
def _installed() -> Any:
    from importlib.metadata import entry_points

    return entry_points()


@functools.cache
def _names_a_group(folder: str) -> bool:
    """Whether a package in a folder of the path has an entry point of the runner's.

    Usually none has. Then importlib.metadata is not imported, which imports some forty modules and parses all of these files.
    """
    for file in Path(folder).glob("*-info/entry_points.txt"):
        with suppress(OSError):
            if _SECTION in file.read_bytes():
                return True
    return False
