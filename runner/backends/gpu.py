"""Torch's devices that are GPUs, and the current device of a thread: its own, and GPU 0 in a new one, where CUDA's first call makes a context.

Such a context takes some 500 MB of GPU 0 for each rank, and is an error where a GPU serves one process only.
"""

from __future__ import annotations

import torch


def is_gpu(device: torch.device) -> bool:
    """Whether it is of a type on which ranks compute beside the CPU: cuda is NVIDIA's and AMD's, xpu Intel's."""
    return device.type in ("cuda", "xpu")


def current_device() -> torch.device:
    """The GPU that is this thread's current device; the CPU if the process has used no GPU yet."""
    for kind, module in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        if module.is_initialized():
            return torch.device(kind, module.current_device())
    return torch.device("cpu")


def take_device(device: torch.device) -> None:
    """Make a GPU this thread's current device, before the thread calls anything else. Does nothing for the CPU."""
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
