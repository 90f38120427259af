"""The folder of a host's own disk, as sites name it, and the kind of file system on which a path is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

# Where sites put a job's part of a node's own disk; the first that is set. (Slurm's job_container, CSC, PBS, and anybody's.)
FOLDERS = ("SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "TMPDIR")
SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "panfs", "afs", "pvfs2", "wekafs", "dvs"),
    "fuse.glusterfs",
)


def disk_of(environment: Mapping[str, str]) -> Path:
    """Return the first of ``FOLDERS`` that is set, can be written, and is on no file system that hosts share; else /tmp."""
    named = (Path(name) for name in map(environment.get, FOLDERS) if name and os.path.isdir(name))
    usable = (path for path in named if os.access(path, os.W_OK | os.X_OK))
    return next((path for path in usable if file_system(path) not in SHARED), Path("/tmp"))  # noqa: S108 - a folder's name only


def file_system(path: Path) -> str:
    """Return the kind of the file system on which an existing path is (man 5 proc, mountinfo); "" if Linux does not tell."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for fields in map(str.split, Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()):
            kinds[fields[4].replace("\\040", " ")] = fields[fields.index("-", 6) + 1]
    real = Path(os.path.realpath(path))
    above = [point for point in kinds if real.is_relative_to(point)]
    return kinds[max(above, key=len)] if above else ""
