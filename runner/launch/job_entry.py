"""Where the ranks of a scheduler's job leave their states, by the job's number: for ``top JOB``, while it runs."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from runner.launch.launchers import SCHEDULER_JOBS

_KEPT = 365 * 86400.0  # seconds


def number_of_job(environment: Mapping[str, str]) -> str | None:
    """The number of the scheduler's job that this process is part of."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '')}"  # as squeue shows it
    return next((environment[name] for name in SCHEDULER_JOBS if environment.get(name)), None)


def entry_of_job(environment: Mapping[str, str]) -> Path | None:
    """The file about this start, in the scheduler's job that it is part of; None if there is no such job, or no home."""
    number = number_of_job(environment)
    folder = _folder()
    if number is None or folder is None or (name := _name_of(number)) is None:
        return None
    return folder / f"{name}.{os.uname().nodename}-{os.getpid()}.json"  # a job may start several


def entries_of(number: str) -> list[Path] | None:
    """The files about the starts of a job, the newest first; None for what is no number of a job."""
    name, folder = _name_of(number), _folder()
    if name is None or folder is None:
        return None
    return sorted(folder.glob(f"{glob.escape(name)}.*.json"), key=_written_at, reverse=True)


def _written_at(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:  # its job has just ended
        return 0.0


def _name_of(number: str) -> str | None:
    name = number.partition(".")[0]  # PBS adds its server
    return name if re.fullmatch(r"[\w\[\]-]*\d[\w\[\]-]*", name) else None


def _folder() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "torch-mpi-runner" / "jobs" if os.path.isabs(home) else None


def written_entry(host: str, folder: Path) -> str:
    """The content of such a file."""
    return json.dumps({"host": host, "folder": str(folder.absolute())}) + "\n"


def remove_old_entries() -> None:
    """Remove those of a year ago: of jobs that were killed with their guards."""
    folder = _folder()
    for entry in folder.glob("*.json") if folder is not None else ():
        if time.time() - _written_at(entry) > _KEPT:
            with suppress(OSError):
                entry.unlink()


def read_entry(entry: Path) -> tuple[str, Path] | None:
    """The host of rank 0, and the folder; None if there is no file that says so."""
    try:
        known = json.loads(entry.read_text(encoding="utf-8"))
        return str(known["host"]), Path(known["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
