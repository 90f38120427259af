"""One run at a time writes in a folder, or to a file: a lock file with the run's host, job and process.

There is no flock: Lustre may be mounted without, and NFS forgets those of a host that was started again. A lock is a file that only
one process can create (O_EXCL, atomic on NFS, too). Its holder renews it, and another run waits to see that: hosts' clocks
may differ, so what counts is that the content changes, by the clock of the one that waits.

    released, or its process has ended on this host, or a supervised job continues: the next one has it at once
    renewed, or its process runs on this host: refused; if the same job of the scheduler was queued again: waits for its end
    not renewed for 60 s: taken over, by one of those that wait; the holder sees that when it writes next, and ends
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.base.errors import RunnerError, UsageError
from runner.base.process_stat import process_stat

_NAME = ".in-use"
_RENEWED = 10.0  # seconds between two renewals
_ABANDONED = 60.0  # seconds without one
_ENDING = 3.0  # seconds that a process on this host gets to end: its launcher may have ended just now
# Seconds that another run gets to end, by whether this one is a later start of its job: then it may still save.
_ENDING_WITHIN = {False: _ENDING, None: _ABANDONED, True: 600.0}
_LOOKS = 0.25  # seconds between two looks
_REPORTED_AFTER = 2.0  # seconds after which a run reports that it waits
_SIZE = 1024  # bytes of a lock: its renewal is one write in place


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock. Two with the same token are the same."""

    token: str = ""
    renewals: int = 0
    host: str = ""
    process: int = 0
    began: str = ""  # the process, in ticks of this start of the machine: its number may be another's later
    machine: str = ""  # this start of it, and the namespace of its process numbers
    job: str = ""  # the scheduler's number; "" if there is none
    start: str = ""  # the job's, which may be queued again; "" if that is not known
    supervised: str = ""  # what all attempts of a supervised job have in common
    attempt: str = ""

    @staticmethod
    def here(*, job: str = "", start: str = "", supervised: str = "", attempt: str = "") -> Holder:
        """This process."""
        return Holder(
            token=os.urandom(8).hex(),
            host=os.uname().nodename,
            process=os.getpid(),
            began=_began(os.getpid()),
            machine=_machine(),
            job=job,
            start=start,
            supervised=supervised,
            attempt=attempt,
        )

    def __str__(self) -> str:
        job = f"job {self.job}, " if self.job else ""
        return f"{job}process {self.process} on host {self.host}" if self.host else "another run"

    @property
    def is_known_here(self) -> bool:
        """Whether its process, if it runs, is visible to this one."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def runs_here(self) -> bool:
        """Whether its process runs on this host."""
        if not self.is_known_here:
            return False
        began = _began(self.process)
        return began == self.began if began else _is_anothers(self.process)

    def is_over_for(self, other: Holder) -> bool:
        """Whether it is known to write nothing any more when the other one comes."""
        is_earlier = bool(self.supervised) and self.supervised == other.supervised and self.attempt != other.attempt
        return is_earlier or (self.is_known_here and not self.runs_here)

    def is_queued_again_as(self, other: Holder) -> bool | None:
        """Whether the other one is a later start of its job; None: it is in that job, and which start is not known."""
        if not self.job or self.job != other.job:
            return False
        return self.start != other.start if self.start and other.start else None


class Lock:
    """A lock that this process holds."""

    def __init__(self, path: Path, holder: Holder, what: Path) -> None:
        self.path, self._holder, self._what = path, holder, what
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # renewed in place: what takes it over is another file
        self._uses_file, self._is_released = threading.Lock(), False

    def check(self) -> None:
        """See that no other run has taken it over.

        Raises:
            RunnerError: one has.
        """
        now = _read(self.path)
        if now is not None and now.token and now.token != self._holder.token:
            raise RunnerError(
                f"{now} writes to {self._what} now: this run was not seen to continue for {_ABANDONED:.0f} s"
            )

    def renew(self) -> None:
        """Show that this process continues; nothing once it is released."""
        with self._uses_file:
            if self._is_released:
                return
            self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
            with contextlib.suppress(OSError):  # no reason to end a job
                os.pwrite(self._file, _content(self._holder), 0)
                os.fsync(self._file)

    def release(self) -> None:
        """Give it back. A forked child does not: it is its parent's."""
        if os.getpid() == self._holder.process:
            self._is_released = True
            # A file system that hangs may still hold a renewal: then the file stays open, so that its number is no other file's.
            if self._uses_file.acquire(blocking=False):
                os.close(self._file)
                self._uses_file.release()
            _remove(self.path, self._holder.token)


@contextlib.contextmanager
def held(paths: Sequence[tuple[Path, str]], own: Holder, report: Callable[[str], None]) -> Iterator[list[Lock]]:
    """Hold the locks of folders, which exist, and of files; a thread renews them, whatever the program does.

    Args:
        paths: each with the option that names it.
        report: called with a line where this process waits.

    Raises:
        UsageError: another run holds one, or it cannot be made.
    """
    options: dict[Path, str] = {}
    for path, option in paths:
        options.setdefault(path.resolve(), option)  # the same also where the program changes its folder
    with contextlib.ExitStack() as stack:
        locks: list[Lock] = []
        for path, option in options.items():
            locks.append(_acquire(path, option, replace(own, token=os.urandom(8).hex()), report))
            stack.callback(locks[-1].release)
        ends = threading.Event()

        def renew() -> None:
            while not ends.wait(_RENEWED):
                for lock in locks:
                    if not ends.is_set():
                        lock.renew()

        thread = threading.Thread(target=renew, name="locks", daemon=True)
        thread.start()
        stack.callback(thread.join, 1.0)  # it may be in a file system that hangs
        stack.callback(ends.set)
        yield locks


def remove_left(locks: Sequence[Path], process: int, within: float = 0.0) -> None:
    """Remove the locks that a process of this host has left which has ended, or does within some seconds."""
    deadline = time.monotonic() + within
    for path in locks:
        left = _read(path)
        if left is None or left.process != process or not left.is_known_here:
            continue
        while left.runs_here and time.monotonic() < deadline:
            time.sleep(0.01)
        if not left.runs_here:
            _remove(path, left.token)


def _acquire(what: Path, option: str, own: Holder, report: Callable[[str], None]) -> Lock:
    path = what / _NAME if what.is_dir() else what.with_name(f".{what.name}{_NAME}")
    began = time.monotonic()
    seen: Holder | None = None
    since, is_reported = began, False
    try:
        while not _create(path, own):
            waited, now = time.monotonic() - began, _read(path)
            if now is None and waited < _ABANDONED:  # it was released just now
                time.sleep(_LOOKS)
                continue
            now = now or Holder()  # a link to nothing
            is_renewed = seen is not None and now != seen
            if now != seen:
                seen, since = now, time.monotonic()
            unchanged = time.monotonic() - since
            is_abandoned = unchanged > _ABANDONED and not now.runs_here
            if unchanged > 2 * _ABANDONED:  # one that was about to take it over has ended meanwhile
                _claim_on(path, now).unlink(missing_ok=True)
            if (now.is_over_for(own) or is_abandoned) and _take_over(path, now, own):
                break
            patience = _ENDING_WITHIN[now.is_queued_again_as(own)]
            is_alive = is_renewed or now.runs_here
            if is_alive and waited > patience:
                raise UsageError(f"{option}: {now} writes to {what}", fix="wait for its end, or name another place")
            if waited > _REPORTED_AFTER and not is_reported:
                is_reported = True
                report(f"waiting to see whether {now} still writes to {what}")
            time.sleep(_LOOKS)
        return Lock(path, own, what)
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}", fix="name another place") from None


def _take_over(path: Path, old: Holder, own: Holder) -> bool:
    """Put an own lock in the place of one that is over. Of several that try only one can: by a file that names the old one."""
    claim = _claim_on(path, old)
    if not _create(claim, own):
        return False
    if (_read(path) or Holder()).token == old.token:
        os.replace(claim, path)
    else:
        claim.unlink(missing_ok=True)
    now = _read(path)
    return now is not None and now.token == own.token


def _claim_on(path: Path, old: Holder) -> Path:
    return path.with_name(f"{path.name}.{old.token or 'broken'}")


def _create(path: Path, holder: Holder) -> bool:
    """Whether the file was not there, and is now."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(file, _content(holder))
        with contextlib.suppress(OSError):
            os.fsync(file)  # for other hosts
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return True


def _content(holder: Holder) -> bytes:
    return f"{json.dumps(asdict(holder)):{_SIZE - 1}}\n".encode()


def _read(path: Path) -> Holder | None:
    """The holder of a lock, an unknown one if it says none; None if there is no lock. Opened anew each time: NFS looks then."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:  # ESTALE: it was replaced just now
        return Holder()
    unknown = Holder(renewals=zlib.crc32(content))  # it may be a later runner's, which renews it
    try:
        holder = Holder(**json.loads(content))
    except (ValueError, TypeError):
        return unknown
    return holder if re.fullmatch(r"[0-9a-f]+", str(holder.token)) else unknown


def _remove(path: Path, token: str) -> None:
    """Remove a lock, if it is still the one with this token."""
    with contextlib.suppress(OSError):
        now = _read(path)
        if now is not None and now.token == token:
            path.unlink()


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(process: int) -> str:
    """When a process began; "" if it does not run, or may not be seen."""
    stat = process_stat(process)
    return "" if stat is None or stat.has_ended else stat.started


def _is_anothers(process: int) -> bool:
    """Whether a process runs that is another user's, of whose processes nothing may be seen here (hidepid)."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
