"""Checkpoints: one file, written by rank 0, replaced as a whole."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runner.errors import UsageError
from runner.training.writing import writing

_FORMAT = 1


@dataclass
class Position:
    """How far a training has come. ``samples`` are those of this epoch that all ranks together have used."""

    epoch: int = 0
    step: int = 0
    samples: int = 0


def save(
    path: Path,
    settings: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    position: Position,
    *,
    aside: Path | None = None,
) -> None:
    """Write a checkpoint beside the old one, and put it in its place when it is on the disk.

    Args:
        settings: what the run was told that shapes it, ``workload`` among it; plain values, lists and dicts.
        aside: where the file that is there now is to be kept, unless something is kept there already.

    Raises:
        RunnerError: it cannot be written; the old one is still there.
    """
    content = {
        "format": _FORMAT,
        "workload": settings["workload"],
        "settings": dict(settings),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "position": asdict(position),
    }
    draft = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            with open(draft, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            if aside is not None and path.exists() and not aside.exists():
                os.rename(path, aside)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def read(path: Path, workload: str, model: nn.Module) -> dict[str, Any]:
    """A checkpoint's content, on the CPU, seen to be whole and to fit the model.

    Raises:
        UsageError: the file is not there, is damaged, is no checkpoint, or is one of another model.
    """
    try:
        _check_sums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        others = ", ".join(sorted(str(other) for other in path.parent.glob("checkpoint*.pt")))
        hint = f"; there is {others}" if others else ""
        raise UsageError(f"--resume: there is no checkpoint {path}{hint}") from None
    except PermissionError as error:
        raise UsageError(f"--resume: {path} cannot be read: {error.strerror}") from None
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"--resume: {path} is damaged, or no checkpoint ({reason[:120]}); name another by --resume FILE, or train "
            "anew without --resume"
        ) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise UsageError(f"--resume: {path} is not a checkpoint of this runner")
    saved, wanted = content["model"], model.state_dict()
    if {name: tuple(value.shape) for name, value in saved.items()} != {
        name: tuple(value.shape) for name, value in wanted.items()
    }:
        raise UsageError(
            f"--resume: {path} is a checkpoint of another model ({content['workload']}, this is {workload}): "
            f"{_first_difference(saved, wanted)}; name another file, or another --checkpoint-dir"
        )
    return content


def restore(content: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> Position:
    """Put a checkpoint's content into model and optimizer."""
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return Position(**content["position"])


def _check_sums(path: Path) -> None:
    """Compare every record with its CRC-32. (torch.save writes a zip file; torch.load does not look at the sums.)"""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")


def _first_difference(saved: dict[str, Any], wanted: dict[str, Any]) -> str:
    for name in [*wanted, *saved]:
        if name not in saved:
            return f"it has no {name}"
        if name not in wanted:
            return f"it has {name}, which the model has not"
        if saved[name].shape != wanted[name].shape:
            return f"{name} is {list(saved[name].shape)} there and {list(wanted[name].shape)} here"
    return "the names differ"
