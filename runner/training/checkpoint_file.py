"""Checkpoints of earlier versions: one file of ``torch.save``. They are still read, but no longer written."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.errors import UsageError
from runner.parallel.state import State, state_by_name
from runner.training.checkpoint_folder import Position, Saved
from runner.training.damage import INSTEAD, damaged

NAME = "checkpoint.pt"


def is_foreign(path: Path) -> bool:
    """Whether a file of ``torch.save`` is another program's. One whose pickle is damaged is not: nothing tells whose it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    archive.read(name)  # compares its CRC-32, unlike torch.load
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:  # it has objects of classes that no checkpoint has
        return True
    except Exception:
        return False
    return not _is_checkpoint(content)


def read_file(path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[Saved, dict[str, Tensor]]:
    """A checkpoint's content, on the CPU, in the form that a checkpoint folder has.

    Raises:
        UsageError: the file is damaged, or is not a checkpoint.
    """
    try:
        _check_sums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix=INSTEAD) from None
    except Exception as error:
        raise damaged(path, str(error) or type(error).__name__) from None
    if not _is_checkpoint(content):
        raise UsageError(f"{path} is not a checkpoint of this runner", fix=INSTEAD)
    state: State = state_by_name(model, optimizer, content["model"], content["optimizer"])
    settings: dict[str, Any] | None = content.get("settings")
    saved = Saved(
        path=path,
        workload=content["workload"],
        position=Position(**content["position"]),
        settings=settings,
        groups=state.groups,
        values=state.values,
    )
    return saved, state.tensors


def _is_checkpoint(content: Any) -> bool:
    return isinstance(content, dict) and content.get("format") == 1


def _check_sums(path: Path) -> None:
    """Compare every record with its CRC-32. (torch.save writes a zip file; torch.load does not check the sums.)"""
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise zipfile.BadZipFile(f"the checksum of {broken} is wrong")
