"""Errors of one line for a file that cannot be written, and for a checkpoint that is not as it was written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.base.errors import RunnerError, UsageError

_ELSEWHERE = "name another place"
_LOST = "the network file system has lost it: see that it is mounted on this host, and is the one that was"
_ADVICE = {
    errno.ENOSPC: f"make room there or {_ELSEWHERE}",
    errno.EDQUOT: f"make room there, have the quota raised, or {_ELSEWHERE}",
    errno.EROFS: f"have the file system mounted for writing, or {_ELSEWHERE}",
    errno.EACCES: f"have its permissions changed, or {_ELSEWHERE}",
    errno.EPERM: f"have its permissions changed, or {_ELSEWHERE}",
    errno.ENOENT: f"something has removed its folder: let nothing do so, or {_ELSEWHERE}",
    errno.EIO: f"the disk or the network file system fails (dmesg may say why): {_ELSEWHERE}",
    errno.ESTALE: _LOST,
    errno.ENOTCONN: _LOST,
    errno.EHOSTDOWN: _LOST,
    errno.ETIMEDOUT: _LOST,
}
INSTEAD = "take the newest that is intact by --resume auto, name another by --resume CHECKPOINT, or train anew without --resume"


@contextmanager
def writing(path: Path, then: str = "") -> Iterator[None]:
    """Turn a failure to write into a ``RunnerError`` of one line.

    Args:
        then: what follows the advice.

    Raises:
        RunnerError: the disk is full, or the system reported another error.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, _ELSEWHERE)
        raise RunnerError(f"cannot write {path}: {error.strerror or error}", fix=f"{advice}{then}") from None


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
