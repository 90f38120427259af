"""The speed of a training: samples, the task's units, and floating-point operations per second; and what rank 0 uses."""

from __future__ import annotations

import contextlib
import re
import time

import psutil
import torch

from runner.backends.gpu import is_gpu
from runner.parallel.task import Task

_USAGE_SECONDS = 1.0  # the least time from one reading of the usage to the next

# Dense operations per second in bf16 (on a V100, which has no bf16, in fp16) by words of the name that torch gives a device, from the
# makers' data sheets (SXM if there are two). The first words that are in the name count. A rank has half an MI250X: one of its two dies.
_PEAKS = {
    "B200": 2250e12,
    "H100 PCIe": 756.5e12,
    "H100 NVL": 835.5e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 149.7e12,
    "A10": 125e12,
    "V100": 125e12,
    "A100": 312e12,
    "H100": 989.5e12,
    "H200": 989.5e12,
    "GH200": 989.5e12,
    "MI250X": 191.5e12,
    "MI300X": 1307.4e12,
}


def speeds(samples_per_s: float, task: Task, ranks: int, device: torch.device) -> dict[str, float]:
    """Return the speeds of all ranks together, for a record: ``samples_per_s``, and others if the task says what they need.

    MFU is the model's operations (none counted twice that activation checkpointing repeats) over those of the device's peak:
    Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, appendix B.
    """
    found: dict[str, float] = {"samples_per_s": samples_per_s}
    if task.units_per_sample > 1:
        found["units_per_s"] = samples_per_s * task.units_per_sample
    if task.flops_per_sample is not None:
        flops = samples_per_s * task.flops_per_sample / ranks
        found["tflops_per_rank"] = flops / 1e12
        if device.type == "cuda" and (peak := peak_of(torch.cuda.get_device_name(device))) is not None:
            found["mfu"] = flops / peak
    return found


def peak_of(name: str) -> float | None:
    """Return the operations per second in half precision of a device with this name; None if they are not known."""
    return next((peak for words, peak in _PEAKS.items() if re.search(rf"\b{words}\b", name)), None)


class UsageReader:
    """Reads this process's use of its host and a device, at most once per second, because a reading takes 0.1 ms."""

    def __init__(self, device: torch.device) -> None:
        self._process, self._device, self._read_at = psutil.Process(), device, time.monotonic()
        self._process.cpu_percent()  # the next call gives what was used since this one

    def read(self) -> dict[str, float]:
        """Return what is in use now, by names of ``StepRecord``; nothing within a second of the last reading."""
        now = time.monotonic()
        if now - self._read_at < _USAGE_SECONDS:
            return {}
        self._read_at = now
        found: dict[str, float] = {"cpu": self._process.cpu_percent(), "memory": self._process.memory_info().rss}
        if is_gpu(self._device):
            free, whole = torch.accelerator.get_memory_info(self._device)
            found["gpu_memory"] = whole - free
            with contextlib.suppress(Exception):  # no NVML, one of another driver, or a GPU of Intel's
                found["gpu"] = float(torch.cuda.utilization(self._device))
        return found
