"""Let a process, and those that it forks, find copies at the paths of their sources, by mounts that only these processes see."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

# linux/sched.h, linux/mount.h
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
# What a file system forbids stays forbidden: statvfs's flag → mount's.
_KEPT = {
    os.ST_NOSUID: 2,
    os.ST_NODEV: 4,
    os.ST_NOEXEC: 8,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}


def show_copies(copies: Sequence[tuple[Path, Path]]) -> None:
    """Show copies at the paths of their sources, to this process, which has one thread, and to those that it forks.

    A child tries it first: some kernels refuse it halfway (AppArmor's unprivileged_userns), which would leave this process nobody's.

    Args:
        copies: copy and source of each.

    Raises:
        OSError: this host does not allow it.
    """
    child = os.fork()
    if child == 0:
        number = 0
        try:
            _show(copies)
        except OSError as error:
            number = error.errno or errno.EPERM
        finally:
            os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(abs(number)))
    _show(copies)


def _show(copies: Sequence[tuple[Path, Path]]) -> None:
    _enter_namespace()
    for copy, source in copies:
        _put_over(copy, source)


def _enter_namespace() -> None:
    """Give this process a mount namespace of its own.

    An ordinary user needs a user namespace for that. Its ids are mapped to themselves, so that other processes see the same user.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEWNS)
    except PermissionError:
        for left in reversed(range(20)):
            try:
                _call("unshare", _NEWNS | _NEWUSER)
                break
            except OSError as error:  # a thread that has ended may be counted for a moment
                if error.errno != errno.EINVAL or not left:
                    raise
                time.sleep(0.05)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with contextlib.suppress(FileNotFoundError):  # setgroups: Linux before 3.19
                Path("/proc/self", name).write_text(text)
    _call("mount", None, b"/", None, _REC | _PRIVATE, None)


def _put_over(copy: Path, source: Path) -> None:
    """Show a copy at the path of its source, in this namespace, for reading only."""
    flags = os.statvfs(copy).f_flag
    kept = sum(flag for own, flag in _KEPT.items() if flags & own)
    _call("mount", os.fsencode(copy), os.fsencode(source), None, _BIND, None)
    _call("mount", None, os.fsencode(source), None, _BIND | _REMOUNT | _RDONLY | kept, None)


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
