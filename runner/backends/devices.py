"""The current device of a thread. It is the thread's own, and GPU 0 in a new one, where the first call of CUDA makes a context.

Such a context takes some 500 MB of GPU 0 for each rank, and is an error where a GPU serves one process only.
"""

from __future__ import annotations

from types import ModuleType

import torch

_KINDS: tuple[tuple[str, ModuleType], ...] = (("cuda", torch.cuda), ("xpu", torch.xpu))


def current_device() -> torch.device:
    """The GPU that is this thread's current device; the CPU if the process has used no GPU yet."""
    for kind, module in _KINDS:
        if module.is_initialized():
            return torch.device(kind, module.current_device())
    return torch.device("cpu")


def take_device(device: torch.device) -> None:
    """Make a GPU this thread's current device, before the thread calls anything else. Does nothing for the CPU."""
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
