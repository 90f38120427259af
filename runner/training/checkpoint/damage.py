"""The error for a checkpoint that is not as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError

INSTEAD = "take the newest that is intact by --resume auto, name another by --resume CHECKPOINT, or train anew without --resume"


class DamagedError(UsageError):
    """A checkpoint is not as it was written."""


def damaged(path: Path, reason: str) -> DamagedError:
    """The error for a checkpoint that cannot be used."""
    return DamagedError(f"{path} is damaged, or no checkpoint ({' '.join(reason.split())[:120]})", fix=INSTEAD)


@contextmanager
def telling_damage(path: Path) -> Iterator[None]:
    """Read a file of tensors.

    Raises:
        DamagedError: it is none.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged(path.parent, f"{path.name}: {error}") from None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file of tensors, of which only what is asked for is read.

    Raises:
        DamagedError: it is none.
    """
    from safetensors import safe_open

    with telling_damage(path), safe_open(path, framework="pt") as file:
        yield file
