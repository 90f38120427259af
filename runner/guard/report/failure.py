"""How a job has failed, in a file for whoever looks at it later: ``DIR/failure.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from runner.guard.report.files import Files
from runner.guard.settings import Watched, Words

FORMAT = 1  # of the file


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of a job. ``time`` is Unix time by the clock of the host that has noticed it."""

    rank: int
    host: str | None
    exit_code: int | None  # None: its guard has gone with it
    what: str  # the cause, in a line
    step: int | None  # the last that is done
    time: float
    attempt: int  # how often the ranks had been started again
    traceback: str = ""  # of the rank, where Python had one
    stacks: str = ""  # of all ranks, where they hang


def of_lost_agent(words: Words, watched: Watched, attempt: int) -> tuple[str, dict[str, Any]] | None:
    """Return the file, and what a proxy writes there if its agent is killed: there may be no other host whose agent notices it.

    None: there is none, or another rank's proxy writes it.
    """
    if watched.log_folder is None or not watched.is_first_on_host:
        return None
    what = "lost with its host's agent"
    host = watched.names.get("host")
    failure = Failure(rank=words.rank, host=host, exit_code=None, what=what, step=None, time=0.0, attempt=attempt)
    return str(watched.log_folder / "failure.json"), _content(failure, words.size, ())


def _content(failure: Failure, size: int, ended_with_it: Iterable[int]) -> dict[str, Any]:
    more = {"size": size, "ended_with_it": sorted(ended_with_it), "command": sys.orig_argv}
    return {"format": FORMAT} | asdict(failure) | more


class Report:
    """The first failure of an attempt, as far as this guard knows, and the file about it."""

    def __init__(self, words: Words, watched: Watched, files: Files | None) -> None:
        """Remove the files that an earlier job has left."""
        self._rank, self._size, self._is_first_on_host = words.rank, words.size, watched.is_first_on_host
        self._files, self._path = files, watched.log_folder / "failure.json" if watched.log_folder else None
        # Of the ranks that have named theirs.
        self.hosts: dict[int, str | None] = {words.rank: watched.names.get("host")}
        self.start_again()
        if self._files and self._path and self._is_first_on_host:
            self._files.put(self._path, None)
            self._files.put(self._path.with_name("failure-*.json"), None)

    def start_again(self) -> None:
        """Begin another attempt."""
        self.first: Failure | None = None
        self._ended_with_it: set[int] = set()

    def keep(self, failure: Failure, ended: set[int]) -> None:
        """Take the first failure. ``ended``: the ranks that end because of it, as far as they are known."""
        self.first, self._ended_with_it = failure, ended

    def write(self, *, is_mended: bool = False) -> None:
        """Write the file: rank 0, which knows most, in any case; the failed rank and the first of each host if it is not there.

        Args:
            is_mended: all ranks start again; the file is ``failure-1.json`` for the first attempt.
        """
        rank, first = self._rank, self.first
        if self._files and self._path and first and (rank in (0, first.rank) or self._is_first_on_host):
            path = self._path.with_name(f"failure-{first.attempt + 1}.json") if is_mended else self._path
            content = _content(first, self._size, self._ended_with_it)
            self._files.put(path, json.dumps(content, indent=1) + "\n", over=rank == 0)
