"""A process's facts about its launch: launcher, rank, size, local rank, each with its source."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.base.errors import LaunchError
from runner.launch.host_lists import expand_hosts
from runner.launch.launcher_processes import launcher_process
from runner.launch.launchers import HOST_LISTS, SCHEDULER_JOBS, Launcher


class Value(NamedTuple):
    """A number and the variable it was read from."""

    value: int
    source: str


class Ignored(NamedTuple):
    """Variables that were set and not used, and why."""

    names: tuple[str, ...]
    why: str


_IS_SERVED = "TORCHELASTIC_USE_AGENT_STORE"


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """Who this process is, according to its launcher.

    ``local_rank`` and ``local_size`` are what the launcher says, or None if it says nothing. The actual
    topology is measured later, from the ranks' records.
    """

    launcher: Launcher
    why: str
    is_chosen: bool = False  # by the user, whatever the variables say
    rank: Value
    size: Value
    local_rank: Value | None
    local_size: Value | None
    ignored: tuple[Ignored, ...]
    environment: Mapping[str, str]
    attempt: int = 0  # how often the guards have started the ranks again
    process: int = field(default_factory=os.getpid)  # that the launcher has started for this rank

    @property
    def host(self) -> str:
        """This host's own name (virtual hosts on one machine have different ones)."""
        return socket.gethostname()

    @property
    def label(self) -> str:
        """``rank 1 of 4 on host node1``: how messages name this process."""
        return f"rank {self.rank.value} of {self.size.value} on host {self.host}"

    @property
    def on_one_host(self) -> bool:
        """Whether the launcher says that all ranks are on this host."""
        return self.local_size is not None and self.local_size.value == self.size.value

    @property
    def has_fresh_store(self) -> bool:
        """Whether the launcher serves a store that this start of the ranks may use.

        torchrun's store outlives its workers (torch 2.14: the agents' own is shared): ranks that it has started again would find
        the addresses of those that are lost, and gloo's connections be refused. torch 2.4's serves one only where its
        agents meet by a fixed address (--rdzv-backend static): otherwise MASTER_PORT is a free port of rank 0's.
        """
        if not self.launcher.has_store or self.environment.get(_IS_SERVED) == "False":
            return False
        return self.environment.get(self.launcher.restarts, "0") == "0"

    @property
    def job_id(self) -> str | None:
        """A name that is the same on all ranks of this job and different in other jobs; None if there is none.

        It is made of the launcher's own identifiers. If these are missing, it is made of the launcher process
        above all ranks (on one host) or of the scheduler's job (on several).
        """
        name = self._job_name()
        return f"{name}/attempt {self.attempt}" if name and self.attempt else name

    def _job_name(self) -> str | None:
        names = self.launcher.job or ("",)
        if not all(self.environment.get(name) for name in names):
            names = tuple(name for name in SCHEDULER_JOBS if self.environment.get(name))[:1]
            parent = launcher_process(self.process) if self.on_one_host else None
            if parent is not None:
                return f"{self.launcher.name}/{os.getuid()}/process {parent.pid}@{parent.create_time()}"
            if not names:
                return None
        return "/".join([self.launcher.name, str(os.getuid()), *(self.environment[name] for name in names)])

    @property
    def hosts(self) -> list[str]:
        """The job's hosts as the launcher or the scheduler lists them, each once; empty if neither does."""
        for name in filter(None, (self.launcher.hosts, *HOST_LISTS)):
            text = self.environment.get(name, "")
            if not text:
                continue
            if os.path.isfile(text):
                with open(text, encoding="utf-8", errors="replace") as lines:
                    return list(dict.fromkeys(line.split()[0] for line in lines if line.split()))
            if os.path.isabs(text):
                continue  # a file that is not here: PBS writes it on the job's first host only
            try:
                return list(dict.fromkeys(expand_hosts(text)))
            except ValueError as error:
                raise LaunchError(f"{name}: {error}") from None
        return []

    @property
    def user_endpoint(self) -> tuple[str, int] | None:
        """``MASTER_ADDR`` and ``MASTER_PORT`` if both are set.

        Raises:
            LaunchError: the port is not one.
        """
        address, port = self.environment.get("MASTER_ADDR"), self.environment.get("MASTER_PORT")
        if not address or not port:
            return None
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise LaunchError(
                f"MASTER_PORT={port} is not a port (1 to 65535)", fix="set one, or unset it and MASTER_ADDR"
            )
        return address, int(port)
