"""The address of the job's store, and the socket that rank 0 holds there."""

from __future__ import annotations

import enum
import resource
import socket
from dataclasses import dataclass, field
from typing import NamedTuple


class NoMpi(enum.Enum):
    """The reasons that prevent a rendezvous by MPI."""

    NOT_A_RANK = enum.auto()  # the launcher started no MPI ranks
    NOT_INSTALLED = enum.auto()  # mpi4py is missing
    NO_LIBRARY = enum.auto()  # mpi4py has found no MPI
    WRONG_LIBRARY = enum.auto()  # mpi4py has loaded another MPI than the launcher's
    RESTARTS = enum.auto()  # ranks that are started again without their launcher cannot be MPI's


class MpiUnavailable(NamedTuple):
    """Why MPI was not used for the rendezvous, and how to change that."""

    reason: NoMpi
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address and port of the job's store, as this rank reaches it.

    ``listener`` is rank 0's bound and listening socket, None on other ranks. The store is served on it; where the launcher
    serves the store (torchrun), the socket stays as it is, and ``rank_0`` is its address.
    """

    host: str
    port: int
    interface: str  # this rank's interface towards it; "" if unknown
    way: str  # how it was agreed on: env, mpi, file, hosts, single, or the launcher that serves the store
    is_launchers: bool = False  # the launcher serves the store
    key: bytes = field(default=b"", repr=False)  # by which the job's ranks recognise one another
    listener: socket.socket | None = None
    rank_0: tuple[str, int] | None = None
    mpi_unavailable: MpiUnavailable | None = None  # None also where MPI was not considered

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


# Enough for any job. Some kernels allow a thousand times as many, and old programs loop over all of them.
_OPEN_FILES = 1 << 20


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: rank 0's store and gloo hold a connection per rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(*, loopback: bool, port: int = 0) -> socket.socket:
    """A socket that listens on a given port, or on one that the kernel chooses (0).

    It listens on loopback only, or on all addresses of IPv4 and IPv6 that the host has.

    Raises:
        OSError: the port is taken, or may not be used.
    """
    for family, address in _families(loopback):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # the kernel has no such family
            continue
        try:
            if family == socket.AF_INET6 and not loopback:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(4096)
            return listener
        except OSError as error:
            listener.close()
            if port:
                raise
            failure = error
    raise failure


def _families(loopback: bool) -> list[tuple[socket.AddressFamily, str]]:
    if loopback:
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    return [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]  # noqa: S104 - all of the host's networks are meant


def port_of(listener: socket.socket) -> int:
    """The port a socket is bound to."""
    return int(listener.getsockname()[1])
