"""The files that a guard writes, in a thread of its own: a file system that hangs does not stop the guard."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

_MOST = 1 << 24  # bytes that wait for a file system; then the writer waits, too,
_PATIENCE = 5.0  # for so many seconds: what comes after that is left out, until it goes on
_LEFT_OUT = b"\nrunner: the file system did not answer; some output is left out\n"


class Files:
    """A thread that writes files, so that nobody waits for a file system."""

    def __init__(self, complain: Callable[[str], None] | None) -> None:
        """``complain``, if it is given, is called with the first error, once."""
        self._complain = complain
        self._appended: dict[Path, bytearray] = {}
        self._newest: dict[Path, tuple[str | None, bool]] = {}
        self._known: set[Path] = set()  # those to which something was appended
        self._is_stuck = self._is_closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="files", daemon=True)
        self._thread.start()

    def append(self, path: Path, content: bytes) -> None:
        """Append to a file. Where it is an earlier job's, a line between the two says so."""
        with self._change:
            if not self._is_stuck:
                has_room = self._change.wait_for(lambda: len(self._appended.get(path, b"")) < _MOST, _PATIENCE)
                self._is_stuck = not has_room
                self._appended.setdefault(path, bytearray()).extend(content if has_room else _LEFT_OUT)
            self._change.notify_all()

    def put(self, path: Path, text: str | None, *, over: bool = True) -> None:
        """Replace a file as a whole; None removes it, or with a * in its name all that match. Earlier content not yet written is dropped.

        Args:
            over: also if it is there.
        """
        with self._change:
            self._newest[path] = text, over
            self._change.notify_all()

    def close(self, within: float) -> None:
        """Wait until all is written, for some seconds at most."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        self._thread.join(within)

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._appended or self._newest or self._is_closed)
                appended, self._appended = self._appended, {}
                newest, self._newest = self._newest, {}
                self._is_stuck = False
                self._change.notify_all()
            if not (appended or newest):
                return
            for path, content in appended.items():
                self._try(path, self._append, content)
            for path, (text, over) in newest.items():
                self._try(path, _put, text, over)

    def _try(self, path: Path, write: Callable[..., None], *what: object) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, *what)
        except OSError as error:  # no reason to end a job
            if self._complain is not None:
                self._complain(f"--log-dir: cannot write {path}: {error.strerror}; the job goes on without it")
            self._complain = None

    def _append(self, path: Path, content: bytearray) -> None:
        with open(path, "ab", buffering=0) as file:
            if path not in self._known and os.fstat(file.fileno()).st_size:
                file.write(started_again())
            self._known.add(path)
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]


def _put(path: Path, text: str | None, over: bool) -> None:
    if text is None:
        for found in [*path.parent.glob(path.name)] if "*" in path.name else [path]:
            found.unlink(missing_ok=True)
    elif over or not path.exists():
        draft = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}")  # other hosts may write it, too
        draft.write_text(text)
        os.replace(draft, path)


def started_again() -> bytes:
    """The line between what two starts of a job have written."""
    return f"runner: started again, {datetime.now():%Y-%m-%d %H:%M:%S}\n".encode()
