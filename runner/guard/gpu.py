"""How busy a rank's GPU is, as the driver says it (NVML), without CUDA and torch. It has not been run on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

from runner.guard.libraries import in_library


class Gpu:
    """One GPU, or a MIG part of one."""

    def __init__(self, uuid: str) -> None:
        """Import the library, if it is there: not in ``usage()``, as a fork during an import leaves its lock held."""
        self._uuid, self._handle = uuid, None
        try:
            import pynvml

            self._nvml: Any = pynvml
        except ImportError:
            self._nvml = None

    def usage(self) -> dict[str, Any]:
        """Utilisation in percent and used memory in bytes, as far as the driver tells them."""
        found: dict[str, Any] = {}
        # There is no library, no driver, or it does not tell this of a MIG part.
        with in_library(), contextlib.suppress(Exception):
            if self._handle is None:
                self._nvml.nvmlInit()
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            found["gpu_memory"] = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
            found["gpu"] = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return found
