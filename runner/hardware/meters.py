"""What a GPU (NVML) and a host's processors tell of themselves: energy (RAPL, by Linux's powercap), utilisation, clock frequency."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

_POWERCAP = Path("/sys/class/powercap")


class Meters:
    """Of one rank. What cannot be read is None: RAPL's counters are for root only since Linux 5.10 (CVE-2020-8694)."""

    def __init__(self, device: str, *, is_first_on_host: bool, root: Path = _POWERCAP) -> None:
        """
        Args:
            device: as torch names it.
            is_first_on_host: this rank's figure has the host's processors in it.
        """
        self._counters = _counters(root) if is_first_on_host else []
        self._gpu = _gpu(device)
        self._before: list[int] | None = None
        self._gpu_before: int | None = None

    def begin(self) -> None:
        self._before = _read(self._counters)
        self._gpu_before = _gpu_millijoules(self._gpu)
        self._clock_before = self._clock()

    def joules(self) -> float | None:
        """Since ``begin()``; None: nothing tells."""
        parts = []
        now = _read(self._counters)
        if self._before and now:
            ranges = [int((folder / "max_energy_range_uj").read_text()) for folder in self._counters]
            parts += [
                1e-6 * ((after - before) % (whole + 1))
                for before, after, whole in zip(self._before, now, ranges, strict=True)
            ]
        gpu = _gpu_millijoules(self._gpu)
        if gpu is not None and self._gpu_before is not None:
            parts.append(1e-3 * (gpu - self._gpu_before))
        return sum(parts) if parts else None

    def clock_kept(self) -> float | None:
        """The device's clock frequency now over that of ``begin()``: below 1 where heat or a limit of power has lowered it; None: unknown."""
        now = self._clock()
        return now / self._clock_before if now and self._clock_before else None

    def _clock(self) -> float | None:
        with contextlib.suppress(Exception):
            if self._gpu is not None:
                library, handle = self._gpu
                return float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
            import psutil

            found = psutil.cpu_freq()  # the mean of all cores
            return found.current if found else None
        return None

    def busy(self) -> float | None:
        """The share of the last sampling period in which the GPU worked; None: there is none, or it does not tell."""
        if self._gpu is None:
            return None
        with contextlib.suppress(Exception):
            library, handle = self._gpu
            return float(library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        return None


def _counters(root: Path) -> list[Path]:
    """The packages' counters: a part of one, such as its cores, is in it."""
    return [
        folder
        for folder in sorted(root.glob("intel-rapl:*"))
        if folder.name.count(":") == 1 and (folder / "energy_uj").exists()
    ]


def _read(counters: list[Path]) -> list[int] | None:
    try:
        return [int((folder / "energy_uj").read_text()) for folder in counters]
    except (OSError, ValueError):
        return None


def _gpu(device: str) -> tuple[Any, Any] | None:
    if not device.startswith("cuda"):
        return None
    with contextlib.suppress(Exception):  # no library, or no driver
        import pynvml
        import torch

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return None


def _gpu_millijoules(gpu: tuple[Any, Any] | None) -> int | None:
    if gpu is None:
        return None
    with contextlib.suppress(Exception):
        library, handle = gpu
        return int(library.nvmlDeviceGetTotalEnergyConsumption(handle))
    return None
