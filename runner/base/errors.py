"""The errors that end a run, and the exit codes they end it with.

    RunnerError          1   a failure that is not a mistake in the request
    ├── RendezvousError  1   the ranks could not meet in time
    └── UsageError       2   what the user asked for cannot be done; the message says the fix
        ├── LaunchError  2   the launcher's variables are missing or contradict each other
        └── RefusedError 2   the ranks met and do not fit together

Each is printed as one line: what is wrong, with the values at hand, then "; " and the fix.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_HANG = 70  # EX_SOFTWARE: a rank has made no progress
EXIT_REQUEUE = 75  # EX_TEMPFAIL of sysexits.h: ended before its time, with its state saved; run it again

# Errors of gloo, NCCL and the store on the other ranks when one has ended.
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError")


class Policy(enum.Enum):
    """How ranks that do not fit together are treated."""

    STRICT = enum.auto()  # they are refused
    DIAGNOSTIC = enum.auto()  # a tool accepts them, and reports what is wrong


class RunnerError(Exception):
    """Base of all errors that the runner raises on purpose."""

    exit_code = EXIT_FAILURE
    signal: str | None = None  # that has asked for it

    def __init__(self, message: str, *, fix: str = "") -> None:
        """``message`` says what is wrong, ``fix`` how to correct it ("" if that is not known)."""
        super().__init__(message)
        self.message, self.fix = message, fix
        self.on_all_ranks = False  # every rank raises the same error, so only rank 0 prints it

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class RendezvousError(RunnerError):
    """The ranks could not find or reach each other within the time allowed."""


class UsageError(RunnerError):
    """The request is wrong; nothing was started or lost."""

    exit_code = EXIT_USAGE


class LaunchError(UsageError):
    """The launcher's variables are incomplete, malformed or contradictory."""


class RefusedError(UsageError):
    """The ranks have exchanged their records, and must not run together."""


@contextmanager
def raised_on_all_ranks(is_so: bool = True) -> Iterator[None]:
    """A phase in which all ranks do the same with the same data: if one raises an error, all raise it.

    Args:
        is_so: False if not all ranks do the same: then each rank that raises an error reports it.
    """
    try:
        yield
    except RunnerError as error:
        error.on_all_ranks = is_so
        raise


def is_echo(error: BaseException) -> bool:
    """Whether an error says no more than that another rank has ended."""
    return any(sign in str(error) for sign in _ECHOES)
