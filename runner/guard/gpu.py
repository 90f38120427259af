"""How busy a rank's GPU is, as the driver says it (NVML), without CUDA and torch. It has not been run on a GPU."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

_WAITING = 1.0  # seconds that a fork waits for the library: not longer for a driver that hangs


class _InLibrary:
    """Keeps the guard from forking while a thread of it is in NVML, whose locks would stay held in the new process."""

    def __init__(self) -> None:
        self._lock, self._is_held_for_fork = threading.Lock(), False
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
        )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _before_fork(self) -> None:
        self._is_held_for_fork = self._lock.acquire(timeout=_WAITING)

    def _after_fork(self) -> None:
        if self._is_held_for_fork:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


_IN_LIBRARY = _InLibrary()


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
        with _IN_LIBRARY, contextlib.suppress(Exception):
            if self._handle is None:
                self._nvml.nvmlInit()
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            found["gpu_memory"] = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
            found["gpu"] = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return found
