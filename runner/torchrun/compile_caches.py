"""torch.compile on a host with several ranks: caches on its own disk, and one rank that compiles what several need.

The C++ and Triton code of a graph is compiled by torch, under a lock of its own. Here ranks with the same graph wait for the one that
lowers it, with whatever that starts, and then find the result in the cache. Each rank compiles its graphs with collectives. A graph's key has
the device's index, so ranks that see all GPUs of a host compile for each GPU; with one visible GPU per rank they share.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from runner.base.host_disk import disk_of
from runner.torchrun.import_hooks import when_imported
from runner.versions.torch_private import GRAPH_COMPILER, coordinate_graph_cache

_WAIT_SECONDS = 600.0  # for another rank's compilation of the same graph; then a rank compiles by itself
_LOOK_SECONDS = 0.05
_UNFIT = r'[\\/:*?"<>|]'  # characters of a user's name that torch leaves out of its folder's, too
_locks: list[int] = []  # the descriptor of the graph's that this process compiles
_timeouts: list[str] = []  # keys of the graphs for which this process has waited in vain


def cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that put the compilers' caches on this host's own disk, without those that the user has set."""
    if environment.get("TORCHINDUCTOR_CACHE_DIR"):  # Triton's is in it
        return {}
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without the user
        user = str(os.getuid())
    folder = disk_of(environment) / f"torchinductor_{re.sub(_UNFIT, '_', user)}"  # in /tmp: torch's own default
    wanted = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder / "triton"}
    return {name: str(path) for name, path in wanted.items() if not environment.get(name)}


def compile_once_per_host() -> None:
    """Have this host's ranks compile each graph once, when torch's compiler is imported."""
    when_imported(GRAPH_COMPILER, lambda: coordinate_graph_cache(_wait, _end))


def _wait(key: str) -> bool:
    """Take a graph's lock, or wait until its holder has compiled it, or has ended. Returns whether to look into the cache again."""
    if (
        _locks or _timeouts
    ):  # within another compilation, where waiting could be in a circle; or it was of no use before
        return False
    try:
        lock = os.open(_lock_file(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, KeyError):  # the cache cannot be written, or the program has unset it: each rank compiles
        return False
    until, has_waited = time.monotonic() + _WAIT_SECONDS, False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            has_waited = True
            if time.monotonic() > until:
                os.close(lock)
                _timeouts.append(key)
                return False
            time.sleep(_LOOK_SECONDS)
        except OSError:  # a file system without locks
            os.close(lock)
            return False
    _locks.append(lock)
    if has_waited:  # its holder has put the graph into the cache, unless it has died or failed
        _end()
    return has_waited


def _end() -> None:
    while _locks:
        lock = _locks.pop()
        fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
        os.close(lock)


def _lock_file(key: str) -> Path:
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "runner-locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / key
