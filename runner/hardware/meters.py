"""What a GPU (NVML) and a host's processors tell of themselves: energy (RAPL, by Linux's powercap), utilisation, clock frequency."""

from __future__ import annotations

import contextlib
from pathlib import Path

from runner.hardware.nvml import GpuMeter

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
        self._device = device

    def begin(self) -> None:
        """To be called where a program has begun to use the device, which is looked for now."""
        self._gpu = _gpu(self._device)
        self._before = _read(self._counters)
        self._gpu_before = self._of_gpu("gpu_energy")
        self._clock_before = self._clock()

    def _of_gpu(self, name: str) -> float | None:
        return None if self._gpu is None else self._gpu.usage().get(name)

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
        gpu = self._of_gpu("gpu_energy")
        if gpu is not None and self._gpu_before is not None:
            parts.append(gpu - self._gpu_before)
        return sum(parts) if parts else None

    def clock_kept(self) -> float | None:
        """The device's clock frequency now over that of ``begin()``: below 1 where heat or a limit of power has lowered it; None: unknown."""
        now = self._clock()
        return now / self._clock_before if now and self._clock_before else None

    def _clock(self) -> float | None:
        if self._gpu is not None:
            return self._gpu.clock()
        with contextlib.suppress(Exception):  # a host that does not tell
            import psutil

            found = psutil.cpu_freq()  # the mean of all cores
            return float(found.current) if found else None
        return None

    def busy(self) -> float | None:
        """The share of the last sampling period in which the GPU worked; None: there is none, or it does not tell."""
        percent = self._of_gpu("gpu")
        return None if percent is None else percent / 100


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


def _gpu(device: str) -> GpuMeter | None:
    if not device.startswith("cuda"):
        return None
    import torch

    with contextlib.suppress(Exception):  # a driver that tells no UUID
        return GpuMeter(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return None
