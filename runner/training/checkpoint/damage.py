"""The error for a checkpoint that is not as it was written."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import UsageError

INSTEAD = "take the newest that is intact by --resume auto, name another by --resume CHECKPOINT, or train anew without --resume"


class DamagedError(UsageError):
    """A checkpoint is not as it was written."""


def damaged(path: Path, reason: str) -> DamagedError:
    """The error for a checkpoint that cannot be used."""
    return DamagedError(f"{path} is damaged, or no checkpoint ({' '.join(reason.split())[:120]})", fix=INSTEAD)
