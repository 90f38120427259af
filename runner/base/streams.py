"""Standard output and error in a locale that lacks some of the characters that the runner prints, as LC_ALL=C does."""

from __future__ import annotations

import codecs
import contextlib
import io
import select
import sys
from collections.abc import Iterator

_REPLACING = "runner.replacing"  # among the codecs' handlers of errors
_before: list[tuple[io.TextIOWrapper, str]] = []


def replace_characters() -> None:
    """Have a "?" printed for what the locale lacks, instead of an error. Bytes of a command line that are no text stay."""
    codecs.register_error(_REPLACING, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != _REPLACING:
            _before.append((stream, stream.errors or "strict"))
            stream.reconfigure(errors=_REPLACING)


def as_python_has_them() -> None:
    """Restore Python's own error handling of streams, for a program that may rely on it."""
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


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    numbers = [ord(character) for character in error.object[error.start : error.end]]
    # (PEP 383: Python has 0xdc80 to 0xdcff for such bytes.)
    return bytes(number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else ord("?") for number in numbers), error.end
