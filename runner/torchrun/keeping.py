"""Keep objects alive until the process ends: if rank 0 dropped the store, the other ranks would lose it, too."""

from __future__ import annotations

_kept: list[object] = []


def keep(thing: object) -> None:
    """Keep an object alive until the process ends."""
    _kept.append(thing)
