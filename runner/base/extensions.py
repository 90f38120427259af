"""Entry points of other packages, by group (``runner.launchers``, ``runner.backends``, …)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from runner.base.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_SECTION = b"[runner."  # how a group of the runner's begins in a file of entry points


@functools.cache
def extensions(group: str) -> Sequence[EntryPoint]:
    """The entry points of a group, of all packages that are installed."""
    return tuple(_installed().select(group=group)) if _is_there() else ()


def load_extension(point: EntryPoint, kind: type[T], make: Callable[[Any], Any] = lambda loaded: loaded) -> T:
    """Return the object that an entry point names, or what ``make`` makes of it.

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

    point = next(point for point in extensions(group) if point.name == name)
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
    from importlib.metadata import entry_points

    return entry_points()


@functools.cache
def _is_there() -> bool:
    """Whether a package on the path may have such an entry point. Where none has, importlib.metadata is not imported, which brings
    some forty modules (email, zipfile, …) into every rank and parses all of these files."""
    return any(map(_names_a_group, sys.path))


def _names_a_group(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")
    except NotADirectoryError:
        return True  # a zip file, into which this does not look
    except OSError:
        return False
    for name in names:
        if name.lower().endswith(("dist-info", "egg-info")):  # EGG-INFO is in a folder that is an egg itself
            with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                if _SECTION in file.read():
                    return True
    return False
