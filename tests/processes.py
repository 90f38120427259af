"""The processes of a job, found by the folder that their command lines name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

LEAVING = 3.0  # seconds that what was started gets to end, after the launcher has
_WORKER = 200e6  # bytes: what has imported torch is a worker, or their importer
AGENT, IMPORTER = "runner-agent", "runner-importer"  # names of processes


def processes(folder: Path) -> list[psutil.Process]:
    """Those whose command line names this folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def left_of(folder: Path, within: float = LEAVING) -> list[str]:
    """The command lines of the processes that name this folder and do not end by themselves in so many seconds."""
    deadline = time.monotonic() + within
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(process.info["cmdline"]) for process in left]


def is_worker(process: psutil.Process) -> bool:
    try:
        return bool(process.memory_info().rss > _WORKER) and process.name() != IMPORTER
    except psutil.Error:
        return False


def of_name(found: Iterable[psutil.Process], name: str) -> list[psutil.Process]:
    """Those of these processes that have a name."""
    named = []
    for process in found:
        with suppress(psutil.NoSuchProcess):
            if process.name() == name:
                named.append(process)
    return named


def proxies(workers: Iterable[psutil.Process], found: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Of these processes those that a launcher has started for ranks: they have the workers' command line, and no such work."""
    lines = {_line(worker) for worker in workers}
    others = {worker.pid for worker in workers}
    return [
        process
        for process in found
        if process.pid not in others and _line(process) in lines and process.name() not in (AGENT, IMPORTER)
    ]


def _line(process: psutil.Process) -> str:
    """Under `supervise` workers may be of the importer of an attempt before."""
    return re.sub(r"/attempt-\d+", "", " ".join(process.cmdline()))
