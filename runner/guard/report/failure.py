"""How a job has failed: advice about it, and a file for whoever looks at it later: ``DIR/failure.json``."""

from __future__ import annotations

import errno
import json
import re
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from runner.guard.report.console import Files
from runner.guard.settings import Watched, Words

FORMAT = 1  # of the file

MORE_MEMORY = "ask for more, or give each rank less to hold"
MORE_SHARED_MEMORY = "make /dev/shm larger (docker run --shm-size 8g), or load data without processes (--workers 0)"
MORE_DISK = "make room on the disk, or have the quota raised"
EVERY_STEP = "all ranks have to make all of its steps"
_COLLECTIVES = "TORCH_DISTRIBUTED_DEBUG=DETAIL shows whether the ranks' collective calls differ"
# How gloo and Open MPI say that they do. (Other parts of torch say "[enforce fail at", too.)
_DIFFERENT_CALLS = re.compile(
    r"\[enforce fail at \S*(gloo/|pair\.cc|buffer\.cc)|MPI_ERR_TRUNCATE|Message truncated", re.IGNORECASE
)
# How torch.save() says that it could not write all.
_NO_DISK = re.compile(r"\[enforce fail at inline_container\.cc|PytorchStreamWriter failed writing")
_NO_SHARED_MEMORY = re.compile("shared memory", re.IGNORECASE)  # torch, of data loaders' processes
_NO_MEMORY = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)
_LATE_IN_GLOO = "Timed out waiting"

_BY_SIGNAL: dict[int, str] = {
    signal.SIGABRT: "a library has ended it, and says why above",
    signal.SIGBUS: "shared memory (df /dev/shm) may be full, or a mapped file was cut short",
    signal.SIGFPE: "a crash in compiled code, its stack is above",
    signal.SIGILL: "a library is built for other processors than this host's",
    signal.SIGKILL: "the log of the scheduler or the kernel (dmesg) may say who did it",
    signal.SIGSEGV: "a crash in compiled code, its stack is above",
}
_BY_LIBRARIES = (signal.SIGABRT, signal.SIGSEGV)  # of collectives, too, if the ranks' calls differ


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


def after_signal(number: int, size: int) -> str:
    """Return advice for a rank, of so many, that was ended by this signal; "" if the signal does not tell."""
    known = _BY_SIGNAL.get(number, "")
    return f"{known}; {_COLLECTIVES}" if size > 1 and number in _BY_LIBRARIES else known


def after_error(error: BaseException) -> str:
    """Return advice for a rank whose program ended by this error; "" if its message and traceback say all there is."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        if "." in (error.name or ""):  # its package is there
            return ""
        return f"install it for {sys.executable} on each host, or see that its folder is on PYTHONPATH there"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there" if error.filename else MORE_DISK
    if _NO_SHARED_MEMORY.search(text):
        return MORE_SHARED_MEMORY
    if _NO_DISK.search(text):
        return MORE_DISK
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return MORE_MEMORY
    if _DIFFERENT_CALLS.search(text):
        return _COLLECTIVES
    if text.startswith("[") and _LATE_IN_GLOO in text:
        return f"a rank is missing, slow, or in another call; allow more with --collective-timeout; {_COLLECTIVES}"
    return ""
