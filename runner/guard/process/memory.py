"""How many processes the kernel has killed for memory in this process's control group (Linux)."""

from __future__ import annotations

import contextlib
from pathlib import Path


def killed_for_memory(process: Path = Path("/proc/self"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """The kernel's count, which a job's limit and a host without free memory both raise; 0 where there is none.

    Args:
        process: its folder in /proc.
        mounts: where control groups are mounted: version 2 here or in ``unified/``, version 1 in ``memory/``.
    """
    count = 0
    with contextlib.suppress(OSError):
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                files = [mounts / kind / path.lstrip("/") / "memory.events" for kind in ("", "unified")]
            elif "memory" in controllers.split(","):
                files = [mounts / "memory" / path.lstrip("/") / "memory.oom_control"]
            else:
                continue
            count += sum(map(_count, files))
    return count


def _count(file: Path) -> int:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return 0
