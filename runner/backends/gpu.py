"""A test whether a torch device is a GPU."""

from __future__ import annotations

import torch


def is_gpu(device: torch.device) -> bool:
    """Whether it is of a type on which ranks compute beside the CPU: cuda is NVIDIA's and AMD's, xpu Intel's."""
    return device.type in ("cuda", "xpu")
