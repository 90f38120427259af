"""How fast a training is: samples, what they consist of, and floating-point operations per second."""

from __future__ import annotations

import torch

from runner.parallel.task import Task
from runner.training.metrics.datasheets import peak_of


def speeds(samples_per_s: float, task: Task, ranks: int, device: torch.device) -> dict[str, float]:
    """The speeds of all ranks together, for a record: ``samples_per_s``, and others if the task says what they need.

    MFU is the model's operations (none counted twice that activation checkpointing repeats) over those of the device's peak:
    Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, appendix B.
    """
    found: dict[str, float] = {"samples_per_s": samples_per_s}
    if task.units_per_sample > 1:
        found["units_per_s"] = samples_per_s * task.units_per_sample
    if task.flops_per_sample is not None:
        found["tflops_per_rank"] = samples_per_s * task.flops_per_sample / ranks / 1e12
        if (peak := peak_tflops(device)) is not None:
            found["mfu"] = found["tflops_per_rank"] / peak
    return found


def peak_tflops(device: torch.device) -> float | None:
    """Return the device's peak performance, in 10^12 dense operations per second in half precision; None if it is not known."""
    peak = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return peak / 1e12 if peak is not None else None
