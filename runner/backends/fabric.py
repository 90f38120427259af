"""The network that NCCL or RCCL has chosen, read from its own log, and the networks that a host has.

The lines are those of NCCL 2.12 to 2.28 and RCCL with NCCL_DEBUG=INFO (NVIDIA's documentation of NCCL_DEBUG, NCCL_DEBUG_SUBSYS and
NCCL_DEBUG_FILE; their forms as public issues show them, see tests/data/nccl).
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.base.environment import set_missing, unset_variables

# NCCL's variables about its log. If one of them is set, the log is the user's.
LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
# Interfaces and devices of networks that are faster than Ethernet's TCP: Slingshot, InfiniBand, Omni-Path.
_FAST = ("class/net/hsn*", "class/net/ib*", "class/infiniband/*", "class/cxi/*")

_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_USED = re.compile(r"NCCL INFO NET/(\S+?) ?: Using (.*?)(?: ?; ?OOB .*)?\s*$", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\] ?([^\s:;]+)")
_PROVIDER = re.compile(r"NCCL INFO NET/OFI Selected [Pp]rovider is ([\w;-]+)")
_PLUGIN = re.compile(r"NCCL INFO NET/Plugin ?: Loaded net plugin (.+?)\s*$|NCCL INFO Plugin Path : (\S+)", re.MULTILINE)
_GPU_DIRECT = re.compile(r"NCCL INFO .*GPU Direct RDMA (Enabled|Disabled)|via NET/[^\n]*?(/GDRDMA)")
_VERSION = re.compile(r"((?:NCCL|RCCL) version ?: ?\S+|NCCL version \S+|RCCL version \S+)")


@dataclass(frozen=True, kw_only=True)
class NcclNetwork:
    """The network that NCCL uses between hosts.

    Attributes:
        name: as NCCL calls it: Socket, IB, AWS Libfabric, …
        devices: network cards or interfaces.
        provider: libfabric's, such as cxi or efa; "" without it.
        plugin: the library that was loaded; "" if NCCL uses its own code.
        gpu_direct: whether the card reads the GPU's memory; None if the log does not say.
        version: of NCCL or RCCL; "" if the log does not say.
    """

    name: str
    devices: Sequence[str] = ()
    provider: str = ""
    plugin: str = ""
    gpu_direct: bool | None = None
    version: str = ""

    def __str__(self) -> str:
        by = f" ({self.provider})" if self.provider else ""
        direct = {True: ", with GPUDirect", False: ", without GPUDirect", None: ""}[self.gpu_direct]
        cards = f" by {', '.join(self.devices)}" if self.devices else ""
        return f"{self.version or 'NCCL'}: network {self.name}{by}{cards}{direct}"


def nccl_network(log: str) -> NcclNetwork | None:
    """Return the network that a log of NCCL names; None if it names none, as where no rank is on another host."""
    named = _NETWORK.search(log)
    used = {name: _DEVICE.findall(devices) for name, devices in _USED.findall(log)}
    if named is None and not used:
        return None
    name = named[1] if named else next(iter(used))
    provider, plugin, version = _PROVIDER.search(log), _PLUGIN.search(log), _VERSION.search(log)
    direct = [said == "Enabled" or bool(by) for said, by in _GPU_DIRECT.findall(log)]
    return NcclNetwork(
        name=name,
        devices=tuple(dict.fromkeys(used.get(name.split()[0], ()))),
        provider=provider[1] if provider else "",
        plugin=next(filter(None, plugin.groups()), "") if plugin else "",
        gpu_direct=any(direct) if direct else None,
        version=" ".join(version[1].replace(":", " ").split()) if version else "",
    )


def fast_networks(system: Path = Path("/sys")) -> list[str]:
    """Return the host's networks that are faster than TCP over Ethernet: hsn0, ib0, mlx5_0, cxi0.

    Args:
        system: the folder of sysfs, for tests.
    """
    return sorted({Path(path).name for pattern in _FAST for path in glob.glob(str(system / pattern))})


def slow_choice(network: NcclNetwork, fast: Sequence[str]) -> str:
    """Why NCCL's choice is slower than this host allows, and what to do; "" if it is not."""
    if network.name != "Socket" or not fast:
        return ""
    slingshot = any(name.startswith(("hsn", "cxi", "efa")) for name in fast)
    fix = (
        "load the site's aws-ofi-nccl or aws-ofi-rccl plugin, so that libnccl-net.so is on LD_LIBRARY_PATH, and see its guide"
        if slingshot
        else "see that libibverbs is installed (in a container, too), /dev/infiniband is there, and NCCL_IB_DISABLE and NCCL_NET are not set"
    )
    return f"NCCL sends by TCP, although this host has {', '.join(fast)}; {fix}"


@contextlib.contextmanager
def nccl_log() -> Iterator[Path | None]:
    """Have NCCL write its log about networks into a file, for as long as the block takes; None if the log is the user's, or there is no room.

    NCCL reads the variables when it starts; it keeps the file open, which has no name after the block.
    """
    try:
        number, name = (0, "") if any(map(os.environ.get, LOG_VARIABLES)) else tempfile.mkstemp(prefix="nccl-")
    except OSError:
        name = ""
    if not name:
        yield None
        return
    os.close(number)
    values = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": name}
    set_missing(values)
    try:
        yield Path(name)
    finally:
        unset_variables(values)
        with contextlib.suppress(OSError):
            os.unlink(name)
