"""Memory and processor time of this process, and use of its GPU, for the metrics."""

from __future__ import annotations

import contextlib
import time

import psutil
import torch

from runner.backends.gpu import is_gpu

_INTERVAL_SECONDS = 1.0


class UsageReader:
    """Reads this process's use of its host and a device, at most once per second, because a reading takes 0.1 ms."""

    def __init__(self, device: torch.device) -> None:
        self._process, self._device, self._read_at = psutil.Process(), device, time.monotonic()
        self._process.cpu_percent()  # the next call gives what was used since this one

    def read(self) -> dict[str, float]:
        """Return what is in use now, by names of ``StepRecord``; nothing within a second of the last reading."""
        now = time.monotonic()
        if now - self._read_at < _INTERVAL_SECONDS:
            return {}
        self._read_at = now
        found: dict[str, float] = {"cpu": self._process.cpu_percent(), "memory": self._process.memory_info().rss}
        if is_gpu(self._device):
            free, whole = torch.accelerator.get_memory_info(self._device)
            found["gpu_memory"] = whole - free
            with contextlib.suppress(Exception):  # no NVML, one of another driver, or a GPU of Intel's
                found["gpu"] = float(torch.cuda.utilization(self._device))
        return found
