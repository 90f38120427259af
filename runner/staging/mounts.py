"""Let a process, and those that it forks, find copies at the paths of their sources, by mounts that only these processes see."""

from __future__ import annotations

import contextlib
import ctypes
import os
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


def enter_namespace() -> None:
    """Give this process, which has one thread, a mount namespace of its own.

    An ordinary user needs a user namespace for that. Its ids are mapped to themselves, so that other processes see the same user.

    Raises:
        OSError: this host allows no such namespace.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEWNS)
    except PermissionError:
        _call("unshare", _NEWNS | _NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with contextlib.suppress(FileNotFoundError):  # setgroups: Linux before 3.19
                Path("/proc/self", name).write_text(text)
    _call("mount", None, b"/", None, _REC | _PRIVATE, None)


def put_over(copy: Path, source: Path) -> None:
    """Show a copy at the path of its source, in this namespace, for reading only.

    Raises:
        OSError: the kernel refuses it.
    """
    flags = os.statvfs(copy).f_flag
    kept = sum(flag for own, flag in _KEPT.items() if flags & own)
    _call("mount", os.fsencode(copy), os.fsencode(source), None, _BIND, None)
    _call("mount", None, os.fsencode(source), None, _BIND | _REMOUNT | _RDONLY | kept, None)


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
