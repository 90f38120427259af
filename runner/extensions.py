"""What other packages add: their entry points, by group (``runner.launchers``, ``runner.backends``, …)."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoints, entry_points
from typing import Any


def extensions(group: str) -> EntryPoints:
    """The entry points of a group, of all packages that are installed."""
    found: EntryPoints = _installed().select(group=group)
    return found


@functools.cache
def _installed() -> Any:
    return entry_points()  # reads a file of every installed package, which takes long on a network file system
