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
    errno.EFBIG: f"allow larger files (ulimit -f), or {_ELSEWHERE}: the file system may allow none",
    errno.EROFS: f"have the file system mounted for writing, or {_ELSEWHERE}",
    errno.EACCES: f"have its permissions changed, or {_ELSEWHERE}",
    errno.EPERM: f"have its permissions changed, or {_ELSEWHERE}",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ENOENT: f"something has removed its folder: let nothing do so, or {_ELSEWHERE}",
    errno.ENOTDIR: f"a part of its path is a file: {_ELSEWHERE}",
    errno.EMFILE: "allow more open files (ulimit -n)",
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
    except (OSError, RuntimeError) as error:
        cause = _cause(error)
        if cause is None:
            raise
        advice = _ADVICE.get(cause.errno or 0, _ELSEWHERE)
        raise RunnerError(f"cannot write {path}: {cause.strerror or cause}", fix=f"{advice}{then}") from None


def _cause(error: BaseException | None) -> OSError | None:
    """Return the system's error. torch.save() raises a RuntimeError while it handles the OSError of its file."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
