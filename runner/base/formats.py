"""The versions of the files that a run leaves: a number under ``format``. A runner reads those up to its own."""

from __future__ import annotations

from pathlib import Path

from runner.base.errors import UsageError


def check_format(path: Path | str, found: object, known: int) -> None:
    """Check a file's number against the newest that this runner knows.

    Raises:
        UsageError: a later runner has written the file.
    """
    if isinstance(found, int) and found > known:
        raise UsageError(f"{path} is of format {found}, and this runner reads {known}", fix="update the runner")
