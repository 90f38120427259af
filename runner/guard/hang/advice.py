"""Advice about the end of a rank, if its cause tells."""

from __future__ import annotations

import errno
import re
import signal
import sys

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
