"""Memory and processor time of this process, and use of its GPU, for the metrics."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psutil
import torch

from runner.backends.gpu import is_gpu

_INTERVAL = 1.0  # seconds


@dataclass(frozen=True)
class Usage:
    """Resources in use at the time of reading; None if unknown."""

    cpu: float | None = None  # percent of a core, since the last reading
    memory: int | None = None  # bytes
    gpu: float | None = None  # percent of the last second or less in which it worked (NVML)
    gpu_memory: int | None = None  # bytes in use on it, by all processes


class UsageReader:
    """Reads this process's use of its host and a device, at most once per second: it takes 0.1 ms."""

    def __init__(self, device: torch.device) -> None:
        self._process, self._device, self._read_at = psutil.Process(), device, time.monotonic()
        self._process.cpu_percent()  # the next call gives what was used since this one

    def read(self) -> Usage:
        """Return what is in use now. Within a second of the last reading all values are None."""
        now = time.monotonic()
        if now - self._read_at < _INTERVAL:
            return Usage()
        self._read_at = now
        cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
        if not is_gpu(self._device):
            return Usage(cpu, memory)
        free, whole = torch.accelerator.get_memory_info(self._device)
        busy = None
        with contextlib.suppress(Exception):  # no NVML, one of another driver, or a GPU of Intel's
            busy = float(torch.cuda.utilization(self._device))
        return Usage(cpu, memory, busy, whole - free)
