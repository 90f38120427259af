"""An error of one line when a file cannot be written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.base.errors import RunnerError

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
