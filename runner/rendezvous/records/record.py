"""The record of one rank: its number and host, its software, and the target that it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import runner
from runner.launch.context import LaunchContext
from runner.versions.torch_build import torch_build


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The record that a rank sends to the others: plain data that JSON can carry.

    A field that is missing in another version's record has its default.
    """

    rank: int = -1
    size: int = 0
    local_rank: int | None = None  # what the launcher says
    local_size: int | None = None  # the same
    launcher: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)  # the variables that rank, size, … were read from
    host: str = ""
    machine: str = ""  # its kernel, however the host is called: containers have own names, clones have one name
    host_key: str = ""  # the machine and the network that this process sees: virtual hosts on a machine have one each
    pid: int = 0
    python: str = ""  # versions
    torch: str = ""
    runner: str = ""
    packages: Sequence[str] = field(default_factory=list)  # which of the backends' packages are installed
    absent_interfaces: Sequence[str] = field(default_factory=list)  # that gloo is told to use
    nccl_interface: Sequence[str] = field(default_factory=list)  # that NCCL would use: name, address with its network
    problem: str | None = None  # why this rank cannot run its target
    fix: str = ""  # of the problem
    target: str = ""
    digest: str = ""  # of the target's text
    arguments: Sequence[str] = field(default_factory=list)
    options: Sequence[str] = field(default_factory=list)  # the runner's that were given, and have to be equal
    resources: Mapping[str, Any] = field(default_factory=dict)  # the fields of placement.Resources
    guard_port: int = 0  # rank 0's: where its guard listens for the others
    importer: int = 0  # the process of which this one was forked
    # Rank 0's, where the ranks meet by a socket file: where the store is, and the job's key in hexadecimal.
    store: Sequence[Any] | None = None
    key: str | None = None


def own_record(context: LaunchContext, **more: Any) -> RankRecord:
    """This rank's record.

    Args:
        more: the fields that do not follow from the launcher, the host and the software.
    """
    return RankRecord(
        rank=context.rank.value,
        size=context.size.value,
        local_rank=context.local_rank.value if context.local_rank else None,
        local_size=context.local_size.value if context.local_size else None,
        launcher=context.launcher.name,
        sources={
            name: value.source
            for name in ("rank", "size", "local_rank", "local_size")
            if (value := getattr(context, name)) is not None
        },
        host=context.host,
        machine=_machine(context.host),
        host_key=f"{_machine(context.host)}/{_network()}",
        pid=os.getpid(),
        python=sys.version.split()[0],
        torch=torch_build().version,
        runner=runner.__version__,
        **more,
    )


def _machine(host: str) -> str:
    """The id of this start of the kernel, which differs between machines; the host's name where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return host


def _network() -> str:
    """The network namespace, by its number on this machine."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
