"""Where the ranks of a scheduler's job leave their states, by the job's number: for ``top JOB``, while it runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from runner.launch.table import SCHEDULER_JOBS

_KEPT = 30 * 86400.0  # seconds


def entry_of_job(environment: Mapping[str, str]) -> Path | None:
    """The file about the scheduler's job that this process is part of; None if there is no such job, or no home."""
    number = next((environment[name] for name in SCHEDULER_JOBS if environment.get(name)), None)
    return None if number is None else entry_of(number)


def entry_of(number: str) -> Path | None:
    """The file about a job, in the user's cache; None for what is no number of a job."""
    number = number.partition(".")[0]  # PBS adds its server
    if not re.fullmatch(r"[\w\[\]-]*\d[\w\[\]-]*", number):
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "torch-mpi-runner" / "jobs" / f"{number}.json" if os.path.isabs(home) else None


def written_entry(host: str, folder: Path) -> str:
    """The content of such a file."""
    return json.dumps({"host": host, "folder": str(folder.absolute())}) + "\n"


def remove_old_entries(entry: Path) -> None:
    """Remove those of jobs that were killed with their guards, a month ago or more."""
    for other in entry.parent.glob("*.json"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _KEPT:
                other.unlink()


def read_entry(entry: Path) -> tuple[str, Path] | None:
    """The host of rank 0, and the folder; None if there is no file that says so."""
    try:
        known = json.loads(entry.read_text())
        return str(known["host"]), Path(known["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
