"""Check of the folder that the job works in."""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import time
from pathlib import Path
from typing import Any

from runner.job import Job
from runner.tools.doctor.examine import Team, Verdict, fail, ok, warn

_SLOW_OPEN = 0.02  # seconds; a local disk takes some 20 µs, a healthy parallel file system about 1 ms


def working_folder(job: Job, team: Team) -> Verdict:
    """Check that every host sees the same working folder and can write in it, and time an open."""
    folder = Path.cwd()
    marker = folder / f".doctor-{secrets.token_hex(4)}"
    problem = _leave(marker) if job.rank == 0 else ""
    try:
        first, first_folder, first_problem = team.share([marker.name, str(folder), problem])[0]
        found = team.gather(_look(folder, first) if job.local_rank == 0 else {})
    finally:
        if job.rank == 0:
            _remove(marker)
    hosts = {host.name: found[host.ranks[0]] for host in job.topology.hosts}
    elsewhere = [f"{name} works in {one['folder']}" for name, one in hosts.items() if one["folder"] != first_folder]
    if elsewhere:
        return fail(
            f"rank 0 works in {first_folder}, but {', '.join(elsewhere)}",
            "start the job in a folder that is there on every host (home, project or scratch), or share it",
        )
    without_view = [name for name, one in hosts.items() if not one["sees"]]
    if without_view and not first_problem:
        return fail(
            f"{', '.join(without_view)} does not see what rank 0 writes in {first_folder}",
            "work in a folder that the hosts share; checkpoints and data are written by one host and read by others",
        )
    closed = {name: one["problem"] for name, one in hosts.items() if one["problem"]}
    if closed:
        return warn(
            f"{first_folder} cannot be written: {', '.join(f'{p} on {n}' for n, p in closed.items())}",
            "--checkpoint-dir and --metrics have to name a folder that can",
        )
    slowest = max(hosts, key=lambda name: hosts[name]["seconds"])
    text = f"{first_folder}: an open takes {hosts[slowest]['seconds'] * 1000:.2g} ms"
    if hosts[slowest]["seconds"] > _SLOW_OPEN:
        return warn(
            f"{text} on {slowest}",
            "a Python that imports torch opens some 10,000 files: install on a faster file system, or in a container image",
        )
    return ok(text + (", on all hosts the same folder" if len(hosts) > 1 else ""))


def _leave(marker: Path) -> str:
    try:
        marker.touch(exist_ok=False)
    except OSError as error:
        return error.strerror or "it fails"
    return ""


def _remove(marker: Path) -> None:
    with contextlib.suppress(OSError):
        marker.unlink()


def _look(folder: Path, marker: str) -> dict[str, Any]:
    own = folder / f".doctor-{secrets.token_hex(4)}"
    times, problem = [], _leave(own)
    if not problem:
        for _ in range(5):
            start = time.monotonic()
            with open(own, "rb"):
                times.append(time.monotonic() - start)
    _remove(own)
    return {
        "folder": str(folder),
        "sees": marker in os.listdir(folder),  # not by stat(): a network file system may cache a miss
        "problem": problem,
        "seconds": statistics.median(times) if times else 0.0,
    }
