"""An error of one line when a file cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunnerError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a ``RunnerError`` of one line.

    Raises:
        RunnerError: the disk is full, or the system reported another error.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise RunnerError(
            f"cannot write {path}: {reason}", fix="make room there or name another place, then go on by --resume"
        ) from None


def _reason(error: BaseException | None) -> str | None:
    """What the system reported. (torch.save() raises a RuntimeError while it handles the OSError of its file.)"""
    while error is not None:
        if isinstance(error, OSError):
            return error.strerror or str(error)
        error = error.__context__
    return None
