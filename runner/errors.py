"""The errors that end a run, and the exit codes they end it with.

    RunnerError          1   something failed that is nobody's typing mistake
    ├── RendezvousError  1   the ranks could not meet in time
    └── UsageError       2   what the user asked for cannot be done; the message says the fix
        ├── LaunchError  2   the launcher's variables are missing or contradict each other
        └── RefusedError 2   the ranks met and do not fit together

Printed, each is one line: what is wrong with the values at hand, "; ", the fix.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2


class Policy(enum.Enum):
    """What becomes of ranks that do not fit together."""

    STRICT = enum.auto()  # they are refused
    DIAGNOSTIC = enum.auto()  # a tool takes them, and says what is wrong with them


class RunnerError(Exception):
    """Base of all errors that the runner raises on purpose."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, *, fix: str = "") -> None:
        """Take what is wrong, and what mends it where that is known."""
        super().__init__(message)
        self.message, self.fix = message, fix
        self.on_all_ranks = False  # every rank raises the same, so that rank 0 alone has to print it

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class RendezvousError(RunnerError):
    """The ranks could not find or reach each other within the time allowed."""


class UsageError(RunnerError):
    """The request is wrong; nothing was started or lost."""

    exit_code = EXIT_USAGE


class LaunchError(UsageError):
    """The launcher's variables are half set, malformed or contradictory."""


class RefusedError(UsageError):
    """The ranks met, compared notes, and must not run together."""


@contextmanager
def raised_on_all_ranks() -> Iterator[None]:
    """A phase in which every rank does the same with the same data, so that all raise an error if one does."""
    try:
        yield
    except RunnerError as error:
        error.on_all_ranks = True
        raise
