"""The cores of a host by package, NUMA node, last-level cache and physical core, as sysfs shows them.

The files are those of Linux's Documentation/admin-guide/cputopology.rst and Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

LEVELS = ("package", "node", "cache", "core")  # from the widest to the narrowest
MOST_CORES = 8192  # Linux's largest NR_CPUS

CoreMap = Mapping[str, Sequence[str]]  # level → the cores of each of its parts, as Linux lists them


def core_map(system: Path = Path("/sys/devices/system")) -> dict[str, list[str]]:
    """Return the parts of each level that have cores which are switched on; a level that Linux does not show has none.

    Args:
        system: the folder of sysfs, for tests.
    """
    found: dict[str, set[str]] = {level: set() for level in LEVELS}
    for cpu in system.glob("cpu/cpu[0-9]*"):
        found["package"].add(_first(cpu / "topology/package_cpus_list", cpu / "topology/core_siblings_list"))
        found["core"].add(_first(cpu / "topology/core_cpus_list", cpu / "topology/thread_siblings_list"))
        found["cache"].add(_last_level_cache(cpu))
    found["node"] = {_first(node / "cpulist") for node in system.glob("node/node[0-9]*")}
    return {level: sorted(filter(None, parts), key=_lowest) for level, parts in found.items()}


def node_of(cores: Iterable[int], system: Path = Path("/sys/devices/system")) -> int | None:
    """Return the NUMA node that has all of these cores; None if there is none, or no other node."""
    wanted, nodes = set(cores), list(system.glob("node/node[0-9]*"))
    for node in nodes if len(nodes) > 1 else ():
        if wanted <= cores_of(_first(node / "cpulist")):
            return int(node.name.removeprefix("node"))
    return None


def cores_text(cores: Iterable[int]) -> str:
    """``[0, 1, 2, 8]`` → ``0-2,8``, as Linux writes it (man 7 cpuset, List format)."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def cores_of(text: str) -> set[int]:
    """``0-2,8`` → ``{0, 1, 2, 8}``."""
    ends = [run.partition("-")[::2] for run in text.split(",") if run]
    return {core for first, last in ends for core in range(int(first), int(last or first) + 1)}


def _last_level_cache(cpu: Path) -> str:
    levels = {cache: _first(cache / "level") for cache in cpu.glob("cache/index[0-9]*")}
    last = max(levels, key=lambda cache: int(levels[cache] or 0), default=None)
    return _first(last / "shared_cpu_list") if last else ""


def _lowest(cores: str) -> int:
    return min(cores_of(cores))


def _first(*files: Path) -> str:
    """The text of the first of these files that can be read; "" if there is none."""
    for file in files:
        with contextlib.suppress(OSError):
            return file.read_text().strip()
    return ""
