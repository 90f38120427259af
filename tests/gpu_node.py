"""A stand-in of a host with GPUs: a module ``pynvml`` that answers as a driver would, and files as kernels show them.

For functions it is a root folder and a module on ``sys.path``; for jobs that a launcher starts, a ``PYTHONPATH``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from runner.hardware.gpus import Gpus, visible_gpus
from runner.versions.torch_build import TorchBuild

CUDA = TorchBuild("2.14.0+cu130", "nvidia")
ROCM = TorchBuild("2.14.0+rocm7.0", "amd")
XPU = TorchBuild("2.14.0+xpu", "intel")
FOR_CPUS = TorchBuild("2.14.0+cpu", "")

# nvml.h: nvmlReturn_t
NOT_SUPPORTED, NO_PERMISSION, NO_DRIVER, NO_LIBRARY, LOST, MISMATCH = 3, 4, 9, 12, 15, 18


@dataclass(frozen=True)
class Nvidia:
    """An NVIDIA GPU: its MIG instances if it is divided, and what NVML answers in place of a handle, or of a UUID."""

    uuid: str
    slices: Sequence[str] | None = None
    error: int = 0
    uuid_error: int = 0
    model: str = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Node:
    """``root`` is the top of the pretended file system, ``modules`` the folder of its ``pynvml``."""

    root: Path
    modules: Path

    def use(self, monkeypatch: pytest.MonkeyPatch) -> Node:
        """Have this process ask the node's driver."""
        monkeypatch.syspath_prepend(self.modules)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        return self

    def visible(self, torch: TorchBuild = CUDA, environment: Mapping[str, str] | None = None, **more: str) -> Gpus:
        """What a process with these variables may use there."""
        return visible_gpus({**(environment or {}), **more}, torch, self.root)


def node(
    folder: Path,
    *,
    nvidia: Sequence[Nvidia] = (),
    nvml_error: int = 0,
    nvml_seconds: float = 0.0,
    files: Sequence[str] = (),
) -> Node:
    """Make a host.

    Args:
        nvidia: what NVML shows, in its order.
        nvml_error: with what it does not start.
        nvml_seconds: how long it takes to start.
        files: in /dev; ``kfd`` is that of AMD's driver.
    """
    root, modules = folder / "root", folder / "modules"
    for path in (root / "dev", modules):
        path.mkdir(parents=True)
    gpus = [asdict(gpu) for gpu in nvidia]
    (modules / "pynvml.py").write_text(
        f"GPUS = {gpus!r}\nINIT_ERROR = {nvml_error}\nSECONDS = {nvml_seconds}\n{_PYNVML}"
    )
    for name in files:
        (root / "dev" / name).touch()
    return Node(root, modules)


_PYNVML = """
import time

NVML_DEVICE_MIG_ENABLE = 1
TEXTS = {3: "Not Supported", 4: "Insufficient Permissions", 9: "Driver Not Loaded", 12: "NVML Shared Library Not Found",
         15: "GPU is lost", 18: "Driver/library version mismatch"}


class NVMLError(Exception):
    def __init__(self, value):
        self.value = value

    def __str__(self):
        return TEXTS.get(self.value, "Unknown Error")


def nvmlInit():
    time.sleep(SECONDS)
    if INIT_ERROR:
        raise NVMLError(INIT_ERROR)


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.1"


def nvmlDeviceGetCount():
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index):
    if GPUS[index]["error"]:
        raise NVMLError(GPUS[index]["error"])
    return GPUS[index]


def nvmlDeviceGetHandleByUUID(uuid):
    return next(gpu for gpu in GPUS if gpu["uuid"] == uuid or uuid in (gpu["slices"] or ()))


def nvmlDeviceGetUUID(gpu):
    if isinstance(gpu, str):
        return gpu
    if gpu["uuid_error"]:
        raise NVMLError(gpu["uuid_error"])
    return gpu["uuid"]


def nvmlDeviceGetName(gpu):
    return gpu["model"]


def nvmlDeviceGetMigMode(gpu):
    if gpu["slices"] is None:
        raise NVMLError(3)
    return [1, 1]


def nvmlDeviceGetMaxMigDeviceCount(gpu):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
    if index >= len(gpu["slices"]):
        raise NVMLError(6)
    return gpu["slices"][index]
"""
