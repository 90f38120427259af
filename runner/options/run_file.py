"""The file ``run.json`` describes a run to later readers of its folders; it is in ``--log-dir`` and beside the checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from runner.job import Job

NAME = "run.json"
FORMAT = 1  # of the file


def leave_run_file(job: Job, folders: Iterable[Path | None], **more: str) -> None:
    """Write it into these folders, on rank 0. One that cannot be written is no reason to end a job.

    Args:
        more: what only the training knows: workload, checkpoints, metrics.
    """
    if job.rank != 0:
        return
    record = job.topology.records[0]
    devices = Counter(one.device for one in job.placements)
    content = {
        "format": FORMAT,
        "began": time.time() - (time.monotonic() - job.board.began),
        "command": sys.orig_argv,
        "folder": os.getcwd(),
        "log_dir": None if job.log_folder is None else str(job.log_folder),
        "launcher": job.context.launcher.title,
        "backend": job.backend,
        "size": job.size,
        "hosts": [{"name": host.name, "ranks": list(host.ranks)} for host in job.topology.hosts],
        "devices": dict(devices),
        "versions": {name: getattr(record, name) for name in ("runner", "python", "torch")},
    }
    text = json.dumps(content | more, indent=1) + "\n"
    for folder in dict.fromkeys(one.resolve() for one in folders if one is not None):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{NAME}.new"
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
            os.replace(temporary, folder / NAME)
