"""NVIDIA's management library (NVML): what the driver shows, without CUDA and torch.

No GPU has been asked how busy it is; MIG has been tried on the stand-in of tests/gpu_node.py only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NO_DRIVER, MISMATCH = 3, 4, 9, 18  # nvml.h: nvmlReturn_t


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """The library, until the block ends.

    Raises:
        Exception: it is missing, as its Python module may be, or it has no driver.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def code_of(error: Exception) -> int | None:
    """The library's number of what is wrong."""
    return getattr(error, "value", None)


def uuid_of(library: Any, handle: Any, index: int) -> str:
    """A GPU's name, which is the same for all processes of a host."""
    try:
        return str(library.nvmlDeviceGetUUID(handle))
    except Exception as error:
        if code_of(error) != NOT_SUPPORTED:
            raise
        return f"nvidia{index}"  # Jetson's driver knows no UUIDs


def is_in_mig_mode(library: Any, handle: Any) -> bool:
    """Whether a GPU is in MIG mode."""
    with contextlib.suppress(Exception):  # this GPU, or this driver, has no MIG
        return bool(library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE)
    return False


def slices_of(library: Any, handle: Any) -> list[str] | None:
    """The UUIDs of a GPU's MIG instances; None if it is not in MIG mode."""
    if not is_in_mig_mode(library, handle):
        return None
    found = []
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(Exception):  # there is no instance of this number
            instance = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(str(library.nvmlDeviceGetUUID(instance)))
    return found


def near_cores(names: Sequence[str], devices: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """Return the cores on the same NUMA node as each GPU, as Linux lists them; "" if the driver or sysfs does not tell.

    Args:
        names: the GPUs' UUIDs.
        devices: sysfs's folder of PCI devices, for tests.
    """
    found = dict.fromkeys(names, "")
    if not found:
        return []
    with contextlib.suppress(Exception), started() as library:
        for name in found:
            with contextlib.suppress(Exception):  # another maker's GPU
                handle = library.nvmlDeviceGetHandleByUUID(name)
                with contextlib.suppress(Exception):  # a whole GPU is in no other
                    handle = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                place = library.nvmlDeviceGetPciInfo(handle).busId
                # NVML writes eight digits of the domain, sysfs four: 00000000:3B:00.0, 0000:3b:00.0
                place = (place.decode() if isinstance(place, bytes) else place).lower()[-12:]
                found[name] = (devices / place / "local_cpulist").read_text().strip()
    return list(found.values())


class GpuMeter:
    """How busy one GPU is, or a MIG part of one."""

    def __init__(self, uuid: str) -> None:
        """Import the library, if it is there: not in ``usage()``, as a fork during an import leaves its lock held."""
        self._uuid, self._handle = uuid, None
        try:
            import pynvml

            self._library: Any = pynvml
        except ImportError:
            self._library = None

    def usage(self) -> dict[str, Any]:
        """Return utilisation in percent and used memory in bytes, if the driver tells them."""
        found: dict[str, Any] = {}
        # There is no library, no driver, or it does not tell this of a MIG part.
        with contextlib.suppress(Exception):
            if self._handle is None:
                self._library.nvmlInit()
                self._handle = self._library.nvmlDeviceGetHandleByUUID(self._uuid)
            found["gpu_memory"] = self._library.nvmlDeviceGetMemoryInfo(self._handle).used
            found["gpu"] = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return found
