"""A checkpoint on disk: a folder ``step-N`` with tensors, and a manifest, ``checkpoint.json``, which is written last.

    step-660/
        model-00001-of-00001.safetensors     tensors; a sharded checkpoint has one file per rank: shard-00001-model-…
        checkpoint.json                      the training's position and settings, sizes and SHA-256 sums of the files

Beside the folders is ``best``, a link to the checkpoint of the best evaluation, if the task says ``keep_best``. ``shards`` writes and
reads the tensors, and rank 0 reads once for all ranks where each shard is (``shard_index``).

Nothing is pickled, so reading a checkpoint runs no code from it. A folder is written under another name and renamed once it is
on the disk, so a folder named ``step-N`` that has its ``checkpoint.json`` is complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.training.checkpoint.file_errors import INSTEAD, DamagedError, damaged
from runner.training.checkpoint.shard_index import FULL

MANIFEST = "checkpoint.json"
BEST = "best"  # a link to a checkpoint, by its name
_FORMAT = 2
_PIECE = 1 << 22
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)

Sums = dict[str, list[Any]]  # per file: its size in bytes and its SHA-256 sum


@dataclass
class Position:
    """The progress of a training.

    Attributes:
        samples: samples that all ranks together have used in this epoch. For a batch sampler or a stream that shards itself: batches.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of a checkpoint besides its tensors: plain values.

    Attributes:
        settings: the options that determine the result.
        groups: the optimizer's parameter groups, as in ``runner.parallel.state.StateDict``.
        values: plain values of the optimizer's and the model's state, as in ``StateDict``.
        finite: whether the loss was finite when the checkpoint was written.
        data: each rank's place in the data, in mid-epoch, if the data has one. Only rank 0 has this list.
        best: the evaluation's number for the task's ``keep_best``, if it was the best so far.
    """

    path: Path
    workload: str
    position: Position
    settings: dict[str, Any]
    groups: list[dict[str, Any]]
    values: dict[str, Any] = field(default_factory=dict)
    finite: bool = True
    data: list[Any] | None = None
    best: float | None = None


def name_of(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step}"


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of each complete checkpoint in a folder, newest first."""
    return [(step, path) for step, path in named_in(folder) if (path / MANIFEST).is_file()]


def named_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of each folder with a checkpoint's name, newest first. A folder without a manifest has been damaged."""
    found = (path for path in folder.glob("step-*") if is_named(path))
    return sorted(((int(path.name.removeprefix("step-")), path) for path in found), reverse=True)


def is_named(path: Path) -> bool:
    """Return whether a path is a folder with a checkpoint's name."""
    return re.fullmatch(r"step-\d+", path.name) is not None and path.is_dir()


def is_sharded(folder: Path) -> bool:
    """Return whether a checkpoint was written in shards, one file per rank."""
    return folder.is_dir() and not (folder / FULL).is_file()


def sums_of(paths: Iterable[Path]) -> Sums:
    """Return sizes and SHA-256 sums of files, by name."""
    return {path.name: [path.stat().st_size, _sha256(path)] for path in paths}


def write_manifest(folder: Path, saved: Saved, sums: Sums) -> None:
    """Write ``checkpoint.json``, and flush the folder to disk."""
    content = {**vars(saved), "position": asdict(saved.position), "files": sums}
    del content["path"]
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "sha256": _digest(content), "content": content}, file)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def put_in_place(staging_folder: Path, folder: Path) -> None:
    """Rename a complete checkpoint to its final name. An older one of the same step is deleted after that."""
    old = _set_aside(folder)
    os.rename(staging_folder, folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def link_best(folder: Path) -> None:
    """Make ``best`` beside a checkpoint a link to it."""
    new = folder.with_name(f".{BEST}.new")
    new.unlink(missing_ok=True)
    os.symlink(folder.name, new)
    os.replace(new, folder.with_name(BEST))
    _sync(folder.parent)


def best_in(folder: Path) -> Path | None:
    """Return the checkpoint that the link ``best`` names; None without one."""
    link = folder / BEST
    named = folder / os.readlink(link) if link.is_symlink() else None
    return named if named and (named / MANIFEST).is_file() else None


def remove(folder: Path) -> None:
    """Remove a checkpoint."""
    shutil.rmtree(_set_aside(folder), ignore_errors=True)  # NFS keeps the names of files that are still read


def _set_aside(folder: Path) -> Path:
    """Rename a checkpoint, if it exists, so that no incomplete folder has its name. Returns the new path."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(folder, old)
    return old


def read_manifest(folder: Path) -> tuple[Saved, Sums]:
    """Read ``checkpoint.json``: the content, and the sums of the other files.

    Raises:
        DamagedError: the manifest is damaged, or a later runner has written it.
    """
    try:
        outer = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise damaged(folder, f"{MANIFEST}: {error}") from None
    if not isinstance(outer, dict) or not {"format", "sha256", "content"} <= outer.keys():
        raise damaged(folder, f"{MANIFEST} lacks entries")
    content = outer["content"]
    if outer["sha256"] != _digest(content):
        raise damaged(folder, f"the checksum of {MANIFEST} is wrong")
    if outer["format"] != _FORMAT:
        raise DamagedError(
            f"{folder} is of format {outer['format']}, and this runner reads {_FORMAT}", fix="update the runner"
        )
    sums, position = content.pop("files"), Position(**content.pop("position"))
    return Saved(path=folder, position=position, **content), sums


def check_files(folder: Path, sums: Sums) -> None:
    """Compare files with their sizes and sums.

    Raises:
        DamagedError: a file is missing, cannot be read or differs from what was written.
        UsageError: a file's permissions forbid reading.
    """
    for name, (size, sha256) in sums.items():
        path = folder / name
        try:
            found = path.stat().st_size
            is_same = found == size and _sha256(path) == sha256
        except FileNotFoundError:
            raise damaged(folder, f"{name} is missing") from None
        except PermissionError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", fix=INSTEAD) from None
        except OSError as error:
            raise damaged(folder, f"{name} cannot be read: {error.strerror}") from None
        if found != size:
            raise damaged(folder, f"{name} has {found} bytes, not {size}")
        if not is_same:
            raise damaged(folder, f"the checksum of {name} is wrong")


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _sync(folder: Path) -> None:
    """Flush a folder's names to disk. Some network file systems refuse this call and keep the names by themselves."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)
