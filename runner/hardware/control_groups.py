"""The control groups of this process, of version 1 and 2, and the CPU time and memory that they allow it (Linux)."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

from runner.hardware.core_map import cores_of

_PROCESS = Path("/proc/self")
# Of control groups version 2 and 1: the limit, what is used, and its part in memory.stat that is cached files.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def control_groups(controller: str, process: Path = _PROCESS) -> list[Path]:
    """The folders of the process's group and of those above it, as far as they are mounted; empty if there is none.

    Of version 1 they are those of ``controller`` (cpu, memory), of version 2 the same for all. In a container the
    group's path may begin outside of what is mounted there; then the mount's own folder is the group.

    Args:
        process: its folder in /proc.
    """
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return []
    found: list[Path] = []
    for _, controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        for fields in mounts:
            # man 5 proc: ID, parent, device, root, mount point, options, optional fields, "-", type, source, super options
            kind, options = fields[fields.index("-", 6) + 1], fields[-1].split(",")
            if kind == ("cgroup" if controllers else "cgroup2") and (not controllers or controller in options):
                root, point = _unescaped(fields[3]), Path(_unescaped(fields[4]))
                folder = point / _below(path, root)
                found += [folder, *(above for above in folder.parents if above.is_relative_to(point))]
    return found


def cpu_quota(process: Path = _PROCESS) -> float | None:
    """The CPU time that control groups allow, in cores; None for no limit."""
    limits = []
    for level in control_groups("cpu", process):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                limit, period = " ".join((level / name).read_text() for name in files).split()
                if limit not in ("max", "-1"):
                    limits.append(int(limit) / int(period))
            except (OSError, ValueError):
                continue
    return min(limits, default=None)


def confined_to_cores(process: Path = _PROCESS) -> bool:
    """Whether the process's control group has fewer cores than the topmost one that is mounted."""
    sizes = []
    for level in control_groups("cpuset", process):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):  # version 2 and 1
            with contextlib.suppress(OSError):
                sizes.append(len(cores_of((level / name).read_text().strip())))
    return bool(sizes) and min(sizes) < max(sizes)


def free_memory() -> int:
    """Return the available bytes of memory: the host's, or fewer if control groups limit them."""
    import psutil

    free = [psutil.virtual_memory().available]
    for level in control_groups("memory"):
        for limit_file, used_file, cached in _MEMORY_FILES:
            try:
                limit = (level / limit_file).read_text().strip()
                if limit != "max":
                    used = int((level / used_file).read_text())
                    stat = dict(line.split() for line in (level / "memory.stat").read_text().splitlines())
                    # Cached files that can be dropped count as used there.
                    free.append(max(0, int(limit) - used + int(stat.get(cached, 0))))
            except (OSError, ValueError):
                continue
    return min(free)


def _below(path: str, root: str) -> PurePosixPath:
    """A group's path within a mount whose top is the group ``root``."""
    group = PurePosixPath(path)
    is_inside = group.is_relative_to(root) and ".." not in group.parts
    return group.relative_to(root) if is_inside else PurePosixPath()


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ")
