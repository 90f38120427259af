"""A rank's output: lines of its guard, and what its worker writes, which is kept in files and shown with its rank.

A worker gets pipes in the place of its standard output and error. So they take what C code, child processes and the agent itself
write, in the order of writing; a thread of the agent passes it on. In the place of a terminal they are pseudo-terminals:
programs see one as before.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TextIO

from runner.guard.process.events import read, readable
from runner.guard.settings import Origin, Words

_PRINT_SECONDS = 2.0  # seconds in which a launcher, or a pager behind it, takes what is printed
_QUIET_SECONDS = 0.2  # seconds without more after which a line that is not finished is shown
_LEAVE_SECONDS = 2.0  # seconds that the end may take where a process of the rank's still writes
_MOST_BYTES = 1 << 24  # bytes that wait for a file system; then the writer waits, too,
_PATIENCE_SECONDS = 5.0  # for so many seconds: what comes after that is left out, until it goes on
_LEFT_OUT = b"\nrunner: the file system did not answer; some output is left out\n"


class Console:
    """The rank's standard error, or that of the launcher where it no longer shows its ranks'."""

    def __init__(self, words: Words, launcher: int, output: RankOutput, origin: Origin) -> None:
        self._words, self._launcher, self._output, self._origin = words, launcher, output, origin
        self.said = ""  # last, without further lines; or the worker's own cause of its end

    def say(self, text: str, *, fix: str = "", last: bool = False, is_named: bool = True) -> None:
        """Print a line, or several.

        Args:
            fix: what to do about it, for the first line.
            last: the launcher has been told to end, or is about to.
            is_named: with this rank's name.
        """
        output = _error_output_of(self._launcher) if last and not self._words.is_shown_to_the_end else None
        self.said, end, more = text.partition("\n")
        line = self._line("; ".join(filter(None, (self.said, fix))), is_named) + end + more
        print_text(f"{line}\n", output.fileno() if output else self._errors)
        if output:
            output.close()
            self._output.keep(line)

    def repeat(self, text: str) -> None:
        """Print what the worker has printed itself, if its launcher does not show that any more."""
        if not self._words.is_shown_to_the_end and (output := _error_output_of(self._launcher)):
            print_text(f"{self._line(text, False)}\n", output.fileno())
            output.close()

    def say_once(self, text: str) -> None:
        """Print what concerns all ranks, on one of them."""
        if self._words.is_reporting:
            self.say(text, is_named=False)

    def say_ended(self, name: str, sender: int, *, has_trained: bool) -> None:
        """Print who ends this rank, by which signal. If the launcher ends all ranks, only one of them prints it."""
        how_to_resume = f"; {self._words.how_to_resume}" if self._words.how_to_resume and has_trained else ""
        if self.is_launchers(sender):
            if self._words.is_reporting:
                text = "the job was ended, or another rank has failed (see its message)"
                self.say(f"{name} from the launcher: {text}{how_to_resume}", last=True)
        else:
            self.say(f"{name} from {described(sender)}{how_to_resume}")

    def is_launchers(self, sender: int) -> bool:
        """Whether a signal comes from the launcher."""
        return bool(self._launcher) and sender in (self._origin.parent, self._launcher)

    def complain(self, text: str) -> None:
        """Print what has nothing to do with the end of the rank."""
        print_text(f"{self._line(text, True)}\n", self._errors)

    @property
    def _errors(self) -> int | None:
        """The descriptor of the rank's standard error; None if it was started without one."""
        return self._output.ends.get(2, self._origin.descriptors.get(2))

    def _line(self, text: str, is_named: bool) -> str:
        return f"runner: {self._words.label}: {text}" if is_named else f"runner: {text}"


def print_text(text: str, file: int | None) -> None:
    """Print lines, as far as they are taken in time: a guard does not wait for a launcher that was stopped, or has ended."""
    if file is None:
        return
    stream = sys.stderr  # its encoding is the ranks', too; None: it was closed
    content = text.encode(stream.encoding, stream.errors or "strict") if stream else text.encode(errors="replace")
    left, end = memoryview(content), time.monotonic() + _PRINT_SECONDS
    with contextlib.suppress(OSError, ValueError):  # it was closed
        while left and _is_writable(file, end - time.monotonic()):
            # A pipe that is writable has room for so many bytes.
            left = left[os.write(file, left[: select.PIPE_BUF]) :]


def _is_writable(file: int, within: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(1000 * max(0.0, within)))


def _error_output_of(process: int) -> TextIO | None:
    """Open the standard error of another process of this user to append; None if that is not possible, or if it is a
    file that the process does not append to itself, and so would overwrite what is added."""
    path = f"/proc/{process}/fd/2"
    try:
        flags = int(re.findall(r"flags:\s*(\d+)", Path(f"/proc/{process}/fdinfo/2").read_text())[0], 8)
        if stat.S_ISREG(os.stat(path).st_mode) and not flags & os.O_APPEND:
            return None
        # (O_NONBLOCK: opening or writing to a pipe that nobody reads would block.)
        return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK), "w")
    except (OSError, IndexError):
        return None


def described(process: int) -> str:
    """Return ``bash (process 4711)``, without the name if it cannot be read."""
    try:
        name = Path(f"/proc/{process}/comm").read_text("utf-8", "replace").strip()
        return f"{name} (process {process})"
    except OSError:
        return f"process {process}" if process else "another process"


class RankOutput:
    """Standard output and error of a rank. Without a folder or a prefix they stay as they are."""

    def __init__(self, folder: Path | None, rank: int, shown: Mapping[int, int], *, with_rank: bool) -> None:
        """``shown``: the descriptors of where the rank's output goes, by its numbers there."""
        prefix = f"[{rank}] ".encode() if with_rank else b""
        paths = {number: f"rank-{rank:05d}.{name}" for number, name in ((1, "out"), (2, "err"))}
        self._streams = [
            _Stream(number, shown[number], folder / "output" / name if folder else None, prefix)
            for number, name in paths.items()
            if number in shown and (folder or with_rank)
        ]
        self._all = list(self._streams)
        self.ends = {one.number: one.writing for one in self._streams}  # what the worker, and the agent, write to
        self._lock = threading.Lock()
        self._files: Files | None = None

    def pass_on(self, files: Files | None) -> None:
        """Begin to pass output on, and to keep it in files."""
        self._files = files
        if self._streams:
            threading.Thread(target=self._work, name="output", daemon=True).start()

    def start_again(self) -> None:
        """Say in the files that another worker begins."""
        self._turn(_LEAVE_SECONDS)
        for one in self._streams:
            self._keep(one, started_again())

    def keep(self, text: str) -> None:
        """Add a line of the guard to the file of standard error that was printed elsewhere."""
        for one in self._streams[1:]:
            self._keep(one, f"{text}\n".encode())

    def close(self) -> None:
        """Pass on the rest. A child process that holds a pipe open is not waited for."""
        streams, deadline = list(self._streams), time.monotonic() + _LEAVE_SECONDS
        for one in streams:
            one.close()
        self.ends = {}
        while self._turn(_LEAVE_SECONDS) and time.monotonic() < deadline:
            if not readable([one.end for one in streams if one in self._streams], _QUIET_SECONDS):
                break
        self._turn(_QUIET_SECONDS, is_quiet=True)  # not 0: the thread may be at it
        for one in streams:
            one.shown = -1  # the number is about to be another file's

    def _work(self) -> None:
        while streams := list(self._streams):
            within = _QUIET_SECONDS if any(one.rest for one in streams) else 3600.0
            self._turn(is_quiet=not readable([one.end for one in streams], within))
        for one in self._all:
            os.close(one.end)

    def _turn(self, within: float = -1, *, is_quiet: bool = False) -> bool:
        """Pass on what there is; if it was quiet, unfinished lines, too. Returns whether more may come."""
        if not self._lock.acquire(timeout=within):
            return False  # the launcher takes nothing more
        try:
            for one in list(self._streams):
                content = one.read()
                if content:
                    self._keep(one, content)
                    one.show(content)
                elif content is not None:
                    self._streams.remove(one)
                if is_quiet or content == b"":
                    one.show_rest()
            return bool(self._streams)
        finally:
            self._lock.release()

    def _keep(self, stream: _Stream, content: bytes) -> None:
        if self._files is not None and stream.path is not None:
            self._files.append(stream.path, content)


class _Stream:
    """Standard output or error. ``shown`` is where it went before, ``end`` the end of the pipe that the guard reads."""

    def __init__(self, number: int, shown: int, path: Path | None, prefix: bytes) -> None:
        self.number, self.shown, self.path, self._prefix = number, shown, path, prefix
        self.end, self.writing = _terminal_like(shown) if os.isatty(shown) else os.pipe()
        os.set_blocking(self.end, False)
        self.rest = b""  # of a line that is not finished; only with a prefix
        self._is_in_line = False

    def close(self) -> None:
        """Close the agent's end for writing."""
        os.close(self.writing)

    def read(self) -> bytes | None:
        """Return what was written; None if there is nothing now, b"" if nothing can come any more."""
        try:
            return read(self.end)
        except OSError:  # EIO: nobody holds the pseudo-terminal
            return b""

    def show(self, content: bytes) -> None:
        """Write where the output goes; with a prefix, whole lines."""
        if not self._prefix:
            self._write(content)
            return
        self.rest += content
        cut = max(self.rest.rfind(b"\n"), self.rest.rfind(b"\r")) + 1
        lines, self.rest = self.rest[:cut], self.rest[cut:]
        self._show_lines(lines)

    def show_rest(self) -> None:
        """Write the line that is not finished: perhaps a question, or dots."""
        rest, self.rest = self.rest, b""
        self._show_lines(rest)

    def _show_lines(self, content: bytes) -> None:
        for line in content.splitlines(keepends=True):
            self._write(line if self._is_in_line else self._prefix + line)
            self._is_in_line = not line.endswith((b"\n", b"\r"))

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(self.shown, rest) :]
            except BlockingIOError:  # somebody else has made it so
                time.sleep(0.01)
            except OSError:  # the launcher that took it is gone; the file goes on
                return


def _terminal_like(number: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the same size, which passes all on as it is. Return the guard's end and the rank's."""
    import fcntl
    import pty
    import termios
    import tty

    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs


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
                has_room = self._change.wait_for(
                    lambda: len(self._appended.get(path, b"")) < _MOST_BYTES, _PATIENCE_SECONDS
                )
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
