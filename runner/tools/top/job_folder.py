"""The folder of a job that ``top`` shows: the one that is named, by path or by the job's number, or the newest one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from runner.base.errors import UsageError
from runner.guard.rank_state import FOLDER, read_states
from runner.launch.job_entry import entries_of, read_entry, remove_old_entries

_FIX = "name the --log-dir of a job"


def job_folder(given: str | None) -> Path:
    """The folder of a job: the given one, that of the job of this number, or the newest one here or in ``runs/`` in which ranks leave their states.

    Raises:
        UsageError: there is none.
    """
    if given is not None:
        if os.path.isdir(Path(given) / FOLDER):
            return Path(given)
        return _folder_of_number(given)
    found = {}
    for folder in (Path(), *Path("runs").glob("*")):
        if os.path.isdir(state := folder / FOLDER):
            with suppress(OSError):
                found[folder] = os.path.getmtime(state)  # which changes with each file that is replaced
    if not found:
        raise UsageError(f"no job has left a folder {FOLDER}/ here or in runs/*/", fix=_FIX)
    return max(found, key=lambda folder: found[folder])


def _folder_of_number(number: str) -> Path:
    """The folder of a scheduler's job that runs."""
    remove_old_entries()
    entries = entries_of(number)
    if entries is None:
        raise UsageError(f"there is no folder {Path(number) / FOLDER}", fix=_FIX)
    known = next(filter(None, map(read_entry, entries)), None)
    if known is None:
        raise UsageError(
            f"there is no folder {Path(number) / FOLDER}, and no job {number} of yours runs with --log-dir", fix=_FIX
        )
    host, folder = known
    # Where hosts share no folder, one of the same name may be here, with the states of this host's ranks.
    states = read_states(folder)
    here = os.uname().nodename
    is_other = host != here and {state.host for state in states} == {here} and all(state.rank for state in states)
    if is_other or not os.path.isdir(folder / FOLDER):
        raise UsageError(
            f"job {number} leaves its states in {folder} of host {host}, which is not seen here",
            fix=f"run top on {host}",
        )
    return folder
