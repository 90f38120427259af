"""A checkpoint on disk: a folder ``step-N`` with tensors, and a manifest, ``checkpoint.json``, which is written last.

    step-660/
        model-00001-of-00001.safetensors     tensors; if they are sharded, one file per rank: shard-00001-model-…
        checkpoint.json                      position of the training, its settings, sizes and SHA-256 sums of the files

Beside it is a link, ``best``, to that of the best evaluation, if the task says ``keep_best``; or a file with its name.

torch.distributed.checkpoint decides which shards a rank writes and reads (``shard_storage``), for any number of ranks. Where
shards are, rank 0 reads once for all (``shard_index``). torch's module is
not imported for full tensors, because it also imports DTensor and sympy: 0.8 s at every start of a job that needs neither.

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
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint import shards
from runner.training.checkpoint.damage import INSTEAD, DamagedError, damaged
from runner.training.checkpoint.shard_index import FULL, Index, path_of

MANIFEST = "checkpoint.json"
BEST = "best"  # a link to a checkpoint, by its name
_NAME = r"step-\d+"
_FORMAT = 2
_PIECE = 1 << 22
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)

Sums = dict[str, list[Any]]  # per file: its size in bytes and its SHA-256 sum


@dataclass
class Position:
    """How far a training has come.

    Attributes:
        samples: used in this epoch by all ranks together; batches, of a batch sampler or a stream that shards itself.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint holds besides its tensors: plain values.

    Attributes:
        settings: the options that determine the result.
        groups: the optimizer's, as in ``runner.parallel.state.State``.
        values: of the optimizer's state, as there.
        is_finite: whether the loss was, when it was written.
        data: each rank's place in the data, in mid-epoch, if the data tells it. Rank 0 alone has it.
        best: the number of its evaluation that the task's ``keep_best`` names, if that was the best when it was written.
    """

    path: Path
    workload: str
    position: Position
    settings: dict[str, Any]
    groups: list[dict[str, Any]]
    values: dict[str, Any] = field(default_factory=dict)
    is_finite: bool = True
    data: list[Any] | None = None
    best: float | None = None


def name_of(step: int) -> str:
    """The folder's name."""
    return f"step-{step}"


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of each complete checkpoint in a folder, newest first."""
    return [(step, path) for step, path in named_in(folder) if (path / MANIFEST).is_file()]


def named_in(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of each folder with a checkpoint's name, newest first. One that is not complete has been damaged."""
    found = (path for path in folder.glob("step-*") if is_named(path))
    return sorted(((int(path.name.removeprefix("step-")), path) for path in found), reverse=True)


def is_named(path: Path) -> bool:
    """Whether this is a folder with a checkpoint's name."""
    return re.fullmatch(_NAME, path.name) is not None and path.is_dir()


def write_full(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write all tensors. Called on one rank.

    Raises:
        OSError: they cannot be written.
        UsageError: safetensors has no such type.
    """
    shards.write(folder / FULL, tensors)


def read_full(folder: Path) -> dict[str, Tensor]:
    """All tensors, in host memory, also if several ranks wrote them. Called on one rank.

    Raises:
        UsageError: a shard is missing, or this torch lacks a type.
    """
    return shards.read_full(folder)


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any = None) -> None:
    """Write this rank's shards of the tensors (DTensors). Collective, in a group of all ranks.

    Raises:
        OSError: a rank cannot write.
        UsageError: safetensors has no such type.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    from runner.training.checkpoint.shard_storage import ShardStorage

    with _by_torch():
        save(dict(tensors), storage_writer=ShardStorage(folder), process_group=group)


def read_shards(folder: Path, index: Index, into: dict[str, Tensor]) -> None:
    """Fill this rank's shards of the tensors, also if they were sharded differently.

    Raises:
        DamagedError: a shard is missing.
    """
    from runner.training.checkpoint import shard_storage

    shard_storage.read_shards(folder, index, into)


def shards_of(folder: Path, rank: int) -> list[Path]:
    """The files that a rank has written."""
    return [path for path in [path_of(folder, rank)] if path.is_file()]


def is_sharded(folder: Path) -> bool:
    """Whether the checkpoint was written in shards, one file per rank."""
    return folder.is_dir() and not (folder / FULL).is_file()


def sums_of(paths: Iterable[Path]) -> Sums:
    """Sizes and SHA-256 sums of files, by name."""
    return {path.name: [path.stat().st_size, _sha256(path)] for path in paths}


def write_manifest(folder: Path, saved: Saved, sums: Sums) -> None:
    """Write ``checkpoint.json``, and flush the folder to disk."""
    content = {
        "workload": saved.workload,
        "position": asdict(saved.position),
        "settings": saved.settings,
        "groups": saved.groups,
        "values": saved.values,
        "finite": saved.is_finite,
        "data": saved.data,
        "best": saved.best,
        "files": sums,
    }
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
    """Let ``best`` beside a checkpoint name it: a link, or a file with its name where the file system has no links."""
    new = folder.with_name(f".{BEST}.new")
    new.unlink(missing_ok=True)
    try:
        os.symlink(folder.name, new)
    except OSError:
        new.write_text(f"{folder.name}\n", encoding="utf-8")
    os.replace(new, folder.with_name(BEST))
    _sync(folder.parent)


def best_in(folder: Path) -> Path | None:
    """The checkpoint that ``best`` names; None if there is none."""
    link = folder / BEST
    named = folder / os.readlink(link) if link.is_symlink() else followed(link)
    return named if named != link and (named / MANIFEST).is_file() else None


def followed(path: Path) -> Path:
    """A checkpoint's path: the same, or, of a file ``best``, that of the checkpoint whose name it has."""
    if path.name != BEST or not path.is_file():
        return path
    name = path.read_text(encoding="utf-8", errors="replace").strip()
    return path.with_name(name) if re.fullmatch(_NAME, name) else path


def remove(folder: Path) -> None:
    """Remove a checkpoint."""
    shutil.rmtree(_set_aside(folder), ignore_errors=True)  # NFS keeps the name of a file that somebody still reads


def _set_aside(folder: Path) -> Path:
    """Rename a checkpoint, if it is there, so that no incomplete folder has its name. Returns its path."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(folder, old)
    return old


def read_manifest(folder: Path) -> tuple[Saved, Sums]:
    """Read ``checkpoint.json``: its content, and the sums of the other files.

    Raises:
        DamagedError: it is damaged, or a later runner has written it.
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
    saved = Saved(
        path=folder,
        workload=content["workload"],
        position=Position(**content["position"]),
        settings=content["settings"],
        groups=content["groups"],
        values=content["values"],
        is_finite=content["finite"],
        data=content.get("data"),
        best=content.get("best"),
    )
    return saved, content["files"]


def check_files(folder: Path, sums: Sums) -> None:
    """Compare files with their sizes and sums.

    Raises:
        DamagedError: a file is missing, cannot be read or differs from what was written.
        UsageError: it may not be read.
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


@contextmanager
def _by_torch() -> Iterator[None]:
    """Call torch.distributed.checkpoint: silence its warning about a single rank, and unwrap its errors."""
    from torch.distributed.checkpoint.api import CheckpointException

    # For good: this may be a thread, and catch_warnings() would undo what the program filters meanwhile.
    warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _sync(folder: Path) -> None:
    """Flush a folder's names to disk, on a file system that can. Others keep them by themselves, as some network file systems do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)
