"""Standard output in a locale that lacks some of the characters that the runner prints, or without a reader."""

from __future__ import annotations

import contextlib
import io
import select
import sys
from collections.abc import Iterator

_before: list[tuple[io.TextIOWrapper, str | None]] = []  # the stream with Python's own handling of errors


def replace_characters() -> None:
    """Have a "?" printed for what the locale lacks, instead of an error. Python's standard error has no such errors."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not _before:
        _before.append((sys.stdout, sys.stdout.errors))
        sys.stdout.reconfigure(errors="replace")


def as_python_has_them() -> None:
    """Restore Python's own error handling of standard output, for a program that may rely on it."""
    for stream, errors in _before:
        # It was a file, and the guard has put a terminal or a pipe in its place: the stream asks for its position last.
        with contextlib.suppress(OSError):
            stream.reconfigure(errors=errors)


@contextlib.contextmanager
def ending_without_reader() -> Iterator[None]:
    """End silently where nobody reads standard output any more, as after ``| head``.

    Raises:
        SystemExit: in the place of a BrokenPipeError of standard output.
    """
    try:
        yield
    except BrokenPipeError:
        output = select.poll()
        output.register(1, 0)  # an error is always told
        if not output.poll(0):
            raise
        raise SystemExit(1) from None
