"""What lives until the process ends, whoever made it: when rank 0 drops the store, the other ranks lose theirs."""

from __future__ import annotations

_kept: list[object] = []


def keep(thing: object) -> None:
    """Hold something until the process ends."""
    _kept.append(thing)
