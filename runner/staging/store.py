"""The copies on a host's own disk: their folder, which only its owner may enter, and who uses, makes and removes them.

    <folder>/torch-mpi-runner-<uid>/<name>-<hash of the path>/<state>           a copy, complete
                                                             /<state>.json      who made it, and whether it is kept
                                                             /<state>.lock      held, shared, by all that use it
                                                             /making.lock       held by the one process that makes a copy

A lock ends with the last process that has it, also after SIGKILL. Copies that nobody uses and that were not to be kept are removed by the
next start in another job.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.base.host_disk import SHARED, disk_of, file_system
from runner.base.quantities import size_text
from runner.hardware.control_groups import free_memory
from runner.launch.launchers import SCHEDULER_JOBS
from runner.staging.tree import Copy, Entry, digest_of, entries_of, missing_in, remove, top_of

_IN_MEMORY = ("tmpfs", "ramfs")
_AWAITED_SECONDS = 24 * 3600.0  # that a copy of `stage` waits for its first run, outside of a scheduler's job
_MAKING_SECONDS = 1800.0  # another process on this host that makes the same copy is waited for


@dataclass(frozen=True, kw_only=True)
class Held:
    """A copy that this process uses, until it ends."""

    path: Path  # of the source, without links
    copy: Path
    is_new: bool  # this process has made it
    lock: int  # the descriptor that marks it as used, in this process and in those that it forks


def source_of(path: Path) -> Path:
    """The path without links.

    Raises:
        UsageError: there is nothing, or the working folder is in it.
    """
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # Python before 3.13: a loop of links
        raise UsageError(f"{path} cannot be staged: {getattr(error, 'strerror', None) or error}") from None
    if Path.cwd().is_relative_to(found):
        raise UsageError(
            f"{path} cannot be staged: the job works in it, and a copy is not written to", fix="name folders below it"
        )
    return found


def store_folder(to: Path | None, environment: Mapping[str, str]) -> Path:
    """Make the folder of this user's copies, if it is not there.

    Args:
        to: the folder that the user names; None: what the site's variables name, else /tmp.

    Raises:
        UsageError: it cannot be made, is shared by hosts, allows no programs, or is another user's.
    """
    above = (to or disk_of(environment)).absolute()  # a program may go elsewhere
    folder = above / f"torch-mpi-runner-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
        flags = os.statvfs(folder).f_flag
    except OSError as error:
        raise UsageError(f"{above}: {error.strerror}", fix="name a folder of the host's own disk") from None
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
        raise UsageError(
            f"{folder} is not this user's alone", fix="remove it, or name another folder with --to or --stage-to"
        )
    if flags & os.ST_NOEXEC:
        raise UsageError(f"{above} allows no programs (noexec)", fix="name another folder with --to or --stage-to")
    if file_system(folder) in SHARED:
        raise UsageError(f"{above} is on a file system that hosts share", fix="name a folder of the host's own disk")
    return folder


def job_of(environment: Mapping[str, str]) -> str:
    """The scheduler's name of the job; "" outside of one."""
    return next((f"{name}={value}" for name in SCHEDULER_JOBS if (value := environment.get(name))), "")


def hold(
    folder: Path,
    source: Path,
    entries: Sequence[Entry],
    fill: Callable[[Copy, Sequence[int]], None],
    *,
    job: str,
    keep: bool = False,
    sent: bool = False,
) -> Held:
    """Take the copy of this state of a source into use; make it first if it is not there.

    Args:
        folder: the store.
        entries: of the source.
        fill: writes files of these indices into the copy.
        job: the scheduler's name of the job, which may use the copy again.
        keep: whether it stays after the job.
        sent: whether `stage` makes it, for jobs that will not compare it with its source.

    Raises:
        UsageError: it does not fit, or cannot be made.
    """
    slot = _slot(folder, source)
    slot.mkdir(mode=0o700, exist_ok=True)
    copy = slot / digest_of(entries)
    with _locked(slot / "making.lock"):
        lock = _shared(copy)
        is_new = not (os.path.lexists(copy) and _about(copy))
        if is_new:
            keep = keep or any(_about(older).get("keep") for older in _copies(slot))
        said = _about(copy) or {"path": str(source), "time": time.time()}
        said |= {
            "time": time.time() if sent else said.get("time", 0.0),
            "used": False if sent else said.get("used", False),
            "job": job or said.get("job", ""),
            "keep": keep or said.get("keep", False),
            "sent": sent or said.get("sent", False),
        }
        if is_new:
            with _used(_newest(one for one in _copies(slot) if one != copy)) as old:
                _make(old, slot, copy, entries, fill, said)
        else:
            if not is_whole(copy):  # something has cleaned up here, or written
                _write(Copy(copy, entries, None, missing := missing_in(entries, copy), repairs=True), missing, fill)
            _say(copy, said)
        for older in _copies(slot):
            if older != copy:
                _remove_if_unused(older)
    return Held(path=source, copy=copy, is_new=is_new, lock=lock)


def find_sent(folder: Path, source: Path, *, job: str) -> tuple[Held, float] | None:
    """Take a copy that `stage` has sent for this job, or to be kept, into use, with its age in seconds; None if there is none.

    Its files are not compared with the source, which would take as long as the imports that it saves: only the folders near the top
    are, in which installations leave a trace.
    """
    copy = _newest(_copies(_slot(folder, source)))  # an older one is there only as long as it is used
    said = _about(copy) if copy else {}
    if copy is None or not said.get("sent") or not (said.get("keep") or said.get("job") == job):
        return None
    lock = _shared(copy)
    if is_whole(copy) and top_of(copy) == top_of(source):
        _say(copy, said | {"used": True})
        return Held(path=source, copy=copy, is_new=False, lock=lock), time.time() - float(said["time"])
    os.close(lock)
    return None


def clear(folder: Path, *, job: str, keep: bool = True) -> list[Path]:
    """Remove the copies that nobody uses and no one is to find again; returns them.

    Args:
        job: copies of this job of the scheduler stay; "": there is none.
        keep: whether those stay that were to be kept, and this job's.
    """
    removed = []
    for slot in folder.iterdir():
        for copy in _copies(slot):
            said = _about(copy)
            is_awaited = said.get("sent") and not said.get("used") and not said.get("job")
            is_young = time.time() - float(said.get("time", 0.0)) < _AWAITED_SECONDS
            stays = keep and (said.get("keep") or (job and said.get("job") == job) or (is_awaited and is_young))
            if not stays and _remove_if_unused(copy):
                removed.append(Path(str(said.get("path"))))
        with contextlib.suppress(OSError), open(slot / "making.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_partial(slot)
    return removed


def _make(
    old: Path | None,
    slot: Path,
    copy: Path,
    entries: Sequence[Entry],
    fill: Callable[[Copy, Sequence[int]], None],
    said: Mapping[str, Any],
) -> None:
    missing = missing_in(entries, old)
    _refuse_without_room(slot, sum(entries[number].size for number in missing), len(entries))
    partial = copy.with_suffix(".partial")
    if os.path.lexists(copy):  # the rest of one whose removal was killed
        copy.rename(partial)
    _remove_partial(slot)
    try:
        _write(Copy(partial, entries, old, missing), missing, fill)
        _say(copy, said)  # first: a copy without it would never be removed
        partial.rename(copy)
    except BaseException:
        remove(partial)
        for file in (_about_file(copy), _lock_file(copy)):
            file.unlink(missing_ok=True)
        raise


def _write(made: Copy, missing: Sequence[int], fill: Callable[[Copy, Sequence[int]], None]) -> None:
    fill(made, missing)
    made.finish()


def _refuse_without_room(slot: Path, needed: int, files: int) -> None:
    """Raise UsageError if files of so many bytes do not fit on this disk, or into the job's memory if it is that."""
    state = os.statvfs(slot)
    needed += files * 2048  # half a block for each
    free, what = state.f_bavail * state.f_frsize, "free"
    if file_system(slot) in _IN_MEMORY and (memory := free_memory()) < free:
        free, what = memory, "left of the memory that this job may use, where this folder is"
    if needed > free:
        raise UsageError(
            f"a copy takes {size_text(needed, 1024)}, and in {slot.parent} there are {size_text(free, 1024)} {what}",
            fix="name another folder with --to or --stage-to, or stage less",
        )


def _slot(folder: Path, source: Path) -> Path:
    if folder.resolve().is_relative_to(source):
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is new
        raise UsageError(
            f"{source} cannot be staged: the copies are in it, in {folder}",
            fix="name another folder with --to or --stage-to",
        )
    return folder / f"{source.name[:40]}-{hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()}"


def _copies(slot: Path) -> list[Path]:
    """The complete copies of a source."""
    return [about.with_suffix("") for about in slot.glob("*.json")]


def is_whole(copy: Path) -> bool:
    """Whether a copy is as its name says: cleaners of temporary folders may have removed some of its files."""
    try:
        return digest_of(entries_of(copy)) == copy.name
    except UsageError:
        return False


def _about_file(copy: Path) -> Path:
    return copy.with_suffix(".json")


def _about(copy: Path) -> dict[str, Any]:
    """Who made a copy; empty if nobody has, or it is being removed."""
    try:
        return dict(json.loads(_about_file(copy).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _say(copy: Path, said: Mapping[str, Any]) -> None:
    """Write who made a copy, in one step."""
    new = copy.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(said))
    new.replace(_about_file(copy))


def _newest(copies: Iterable[Path]) -> Path | None:
    return max(copies, key=lambda one: float(_about(one).get("time", 0.0)), default=None)


@contextlib.contextmanager
def _used(copy: Path | None) -> Iterator[Path | None]:
    """Mark a copy as used for as long as the block takes; None if it is being removed."""
    if copy is None:
        yield None
        return
    lock = _shared(copy)
    try:
        yield copy if _about(copy) else None
    finally:
        os.close(lock)


def _shared(copy: Path) -> int:
    """Mark a copy as used, and return the descriptor of the lock. Waits while the copy is removed."""
    while True:
        lock = os.open(_lock_file(copy), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_file(_lock_file(copy), lock):
            return lock
        os.close(lock)  # it was removed with the copy


def _remove_if_unused(copy: Path) -> bool:
    """Remove a copy, unless a process holds its lock. Returns whether it was removed."""
    with contextlib.suppress(OSError), open(_lock_file(copy), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_file(_lock_file(copy), lock.fileno()):
            return False
        partial = copy.with_suffix(".partial")
        with contextlib.suppress(FileNotFoundError):
            copy.rename(partial)  # first: what is left if this process is killed is no copy
        _about_file(copy).unlink(missing_ok=True)
        remove(partial)
        _lock_file(copy).unlink()
        return True
    return False


def _remove_partial(slot: Path) -> None:
    """Remove what processes that were killed have left of copies. The caller holds the slot's lock."""
    for partial in slot.glob("*.partial"):
        remove(partial)
    for path in slot.glob("*.lock"):
        with contextlib.suppress(OSError), open(path, "a") as lock:
            if path.name != "making.lock" and not _about(path.with_suffix("")):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _lock_file(copy: Path) -> Path:
    return copy.with_suffix(".lock")


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as lock:
        until = time.monotonic() + _MAKING_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UsageError(f"another process has made a copy in {path.parent} for too long") from None
                time.sleep(0.1)
        yield
