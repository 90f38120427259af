"""The errors that end a run, and the exit codes they end it with.

    RunnerError          1   something failed that is nobody's typing mistake
    ├── RendezvousError  1   the ranks could not meet in time
    └── UsageError       2   what the user asked for cannot be done; the message says the fix
        ├── LaunchError  2   the launcher's variables are missing or contradict each other
        └── RefusedError 2   the ranks met and do not fit together

Every message is one line, with the values at hand and the fix. ``told_by_all`` is true where every
rank raises the same error, so that rank 0 alone has to print it.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2


class RunnerError(Exception):
    """Base of all errors that the runner raises on purpose."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, *, told_by_all: bool = False) -> None:
        super().__init__(message)
        self.told_by_all = told_by_all


class RendezvousError(RunnerError):
    """The ranks could not find or reach each other within the time allowed."""


class UsageError(RunnerError):
    """The request is wrong; nothing was started or lost."""

    exit_code = EXIT_USAGE


class LaunchError(UsageError):
    """The launcher's variables are half set, malformed or contradictory."""


class RefusedError(UsageError):
    """The ranks met, compared notes, and must not run together."""
