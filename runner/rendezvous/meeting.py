"""The ways in which ranks meet, and the order in which they are tried."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.errors import RefusedError, RendezvousError, RunnerError, UsageError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.launch.table import SCHEDULERS
from runner.rendezvous.endpoint import Endpoint, MpiUnavailable, NoMpi, listen, port_of
from runner.rendezvous.gathering import host, join
from runner.rendezvous.interfaces import interface_towards, is_loopback, own_addresses
from runner.rendezvous.mpi import meet_by_mpi, mpi_unavailable
from runner.rendezvous.records import Records
from runner.rendezvous.secret import derived, job_key

WAYS = ("auto", "env", "mpi", "file", "hosts")

Record = dict[str, Any]


@dataclass(frozen=True)
class Meeting:
    """What the ranks know once they have met: all records in rank order, and where the store is."""

    records: Records
    endpoint: Endpoint
    why: str  # why this way was taken


def choose_way(context: LaunchContext, wanted: str = "auto") -> tuple[str, str, MpiUnavailable | None]:
    """(the way to meet, why, why it is not MPI).

    Raises:
        RendezvousError: none is possible; the message says what to set or install.
        UsageError: the way asked for is not possible here.
    """
    if context.size.value == 1:
        return "single", "one rank", None
    if wanted != "auto":
        if problem := _impossible(context, wanted):
            with raised_on_all_ranks():  # they have the same command line and launcher
                raise problem
        return wanted, "chosen by --rendezvous", None
    if context.user_endpoint and context.launcher.name != "torchrun":
        return "env", "MASTER_ADDR and MASTER_PORT are set", None
    no_mpi = mpi_unavailable(context)
    if no_mpi is None:
        return "mpi", f"started by {context.launcher.title}, and mpi4py is installed", None
    if context.on_one_host and context.job_id:
        return "file", f"one host; no MPI: {no_mpi}", no_mpi
    if context.hosts and context.job_id:
        return "hosts", f"the hosts are known; no MPI: {no_mpi}", no_mpi
    with raised_on_all_ranks():
        raise RendezvousError(
            f"nothing says where {context.size.value} ranks are to meet: {no_mpi}, and neither {context.launcher.title} "
            "nor a scheduler lists the hosts",
            fix="install mpi4py, or set MASTER_ADDR (rank 0's host) and MASTER_PORT (a free port)",
        )


def _impossible(context: LaunchContext, way: str) -> RunnerError | None:
    """Why the way that is asked for cannot be gone."""
    if way == "env" and context.user_endpoint is None:
        return UsageError("--rendezvous env needs MASTER_ADDR and MASTER_PORT, both of them")
    if way == "hosts" and not context.hosts:
        return UsageError("--rendezvous hosts: neither launcher nor scheduler lists the hosts")
    if way in ("file", "hosts") and context.job_id is None:
        return RendezvousError(
            f"{context.launcher.title} gives this job no name that its hosts share",
            fix="install mpi4py, or set MASTER_ADDR and MASTER_PORT",
        )
    return None


def meet(
    context: LaunchContext, own: Record, *, way: str = "auto", timeout: float = 300.0, examining: bool = False
) -> Meeting:
    """Exchange the records of all ranks, and agree on an endpoint that rank 0 holds.

    Args:
        own: this rank's record: plain data that JSON can carry.
        way: one of ``WAYS``.
        timeout: seconds until all ranks must have come.
        examining: for a tool that looks for what is wrong: where MPI proves to be another launcher's, meet in another
            way, if there is one; under torchrun, whose store it is, keep rank 0's socket open for the tool.

    Raises:
        RendezvousError: the ranks could not meet.
        UsageError: the way asked for is not possible here.
    """
    chosen, why, no_mpi = choose_way(context, way)
    if chosen == "single":
        records, endpoint = Records.of([own]), _own_endpoint(listen(loopback=True), "single")
    elif chosen == "mpi":
        try:
            records, endpoint = meet_by_mpi(context, own)
        except RefusedError as error:
            # srun offers PMI to all, also to an MPI that speaks another: MPI is then of no use, but also not needed.
            is_needed = way != "auto" or (context.launcher.name not in SCHEDULERS and not examining)
            if is_needed or not context.job_id or not (context.hosts or context.on_one_host):
                raise
            no_mpi = MpiUnavailable(NoMpi.WRONG_LIBRARY, error.message, error.fix)
            why = f"the hosts are known; no MPI: {no_mpi}"
            records, endpoint = (_by_hosts if context.hosts else _by_file)(context, own, timeout)
    else:
        records, endpoint = _SOCKET_WAYS[chosen](context, own, timeout)
    if context.launcher.name == "torchrun" and context.user_endpoint:
        endpoint = _torchrun_endpoint(context.user_endpoint, endpoint, keep_open=examining)
    if len(records.of_field("host_key")[0]) > 1 and is_loopback(endpoint.interface):
        # A host may know its own name as 127.0.1.1 (Debian's /etc/hosts): good to reach itself, not to be reached.
        others = own_addresses(context.environment)
        endpoint = replace(endpoint, interface=others[0][0] if others else "")
    return Meeting(records, replace(endpoint, mpi_unavailable=no_mpi), why)


def _own_endpoint(listener: socket.socket, way: str, reached_by: str = "", key: bytes = b"") -> Endpoint:
    address = reached_by or listener.getsockname()[0]
    return Endpoint(
        host=address,
        port=port_of(listener),
        interface=interface_towards(address),
        way=way,
        key=key,
        listener=listener,
    )


def _torchrun_endpoint(store: tuple[str, int], met: Endpoint, *, keep_open: bool) -> Endpoint:
    """torchrun has a store already, and that one is used."""
    host, port = store
    if met.listener is not None and not keep_open:
        met.listener.close()
        met = replace(met, listener=None)
    return replace(
        met, host=host, port=port, interface=interface_towards(host), way="torchrun", door=(met.host, met.port)
    )


def _by_environment(context: LaunchContext, own: Record, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 listens at the endpoint that the user set; the others go there."""
    assert context.user_endpoint is not None  # the way was chosen for it
    address, port = context.user_endpoint
    key = job_key(context)
    if context.rank.value == 0:
        try:
            listener = listen(loopback=False, port=port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on MASTER_PORT={port} of host {context.host}: {error.strerror}",
                fix="unset MASTER_ADDR and MASTER_PORT, and a free port is found, or set another port",
            ) from None
        gathering = host(listener, own, context.size.value, key, timeout)
        return gathering.records, replace(_own_endpoint(listener, "env", address, key), host=address)
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"MASTER_ADDR={address} does not resolve on host {context.host}: {error.strerror}",
            fix="set it to a name or an address of rank 0's host that every host knows",
        ) from None
    whom = f"rank 0 at MASTER_ADDR={address}, MASTER_PORT={port}"
    gathering, _ = join(lambda: _resolve(address, [port]), own, context.rank.value, key, timeout, whom)
    return gathering.records, _others_endpoint(address, port, "env", key)


def _by_file(context: LaunchContext, own: Record, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 listens on a socket file whose name all ranks of the job can work out."""
    path = _socket_file(context)
    known = derived(b"", str(path))  # the folder keeps others out
    if context.rank.value == 0:
        store, key = listen(loopback=True), os.urandom(32)
        with _listen_on_file(path) as listener:
            own = own | {"store": store.getsockname()[:2], "key": key.hex()}
            try:
                gathering = host(listener, own, context.size.value, known, timeout)
            finally:
                path.unlink(missing_ok=True)
        return gathering.records, _own_endpoint(store, "file", key=key)
    family = socket.AF_UNIX
    doors = [(family, str(path))]
    gathering, _ = join(lambda: iter(doors), own, context.rank.value, known, timeout, f"rank 0 at {path}")
    first = gathering.records[0]
    address, port = first["store"]
    return gathering.records, _others_endpoint(address, port, "file", bytes.fromhex(first["key"]))


def _by_hosts(context: LaunchContext, own: Record, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 takes the first free of a few ports made from the job's name; the others look there on the known hosts."""
    ports, key = candidate_ports(context.job_id or ""), job_key(context)
    if context.rank.value == 0:
        listener = _first_free(ports, context)
        gathering = host(listener, own, context.size.value, key, timeout)
        address = gathering.reached_by[0] if gathering.reached_by else ""
        return gathering.records, _own_endpoint(listener, "hosts", address, key)
    whom = f"rank 0 on {', '.join(context.hosts[:4])} at one of ports {ports[0]}-{ports[-1]}"
    gathering, reached = join(
        lambda: (door for name in context.hosts for door in _resolve(name, ports)),
        own,
        context.rank.value,
        key,
        timeout,
        whom,
    )
    return gathering.records, _others_endpoint(reached[0], reached[1], "hosts", key)


_SOCKET_WAYS = {"env": _by_environment, "file": _by_file, "hosts": _by_hosts}


def _others_endpoint(address: str, port: int, way: str, key: bytes) -> Endpoint:
    return Endpoint(host=address, port=port, interface=interface_towards(address), way=way, key=key)


def candidate_ports(job: str, count: int = 8) -> list[int]:
    """A run of ports for a job, below the range from which kernels take ephemeral ports (32768 on Linux).

    Jobs on one host rarely get the same run, and where they do, rank 0 takes the next port and the
    job's key tells them apart.
    """
    first, last = 15000, 32000
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:8], "big")
    start = first + digest % (last - first - count)
    return list(range(start, start + count))


def _resolve(name: str, ports: list[int]) -> Iterator[tuple[socket.AddressFamily, Any]]:
    for port in ports:
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            return  # another host, or another round, may do
        for family, _, _, _, address in found:
            yield family, address


def _first_free(ports: list[int], context: LaunchContext) -> socket.socket:
    for port in ports:
        try:
            return listen(loopback=False, port=port)
        except OSError:
            continue
    raise RendezvousError(
        f"ports {ports[0]}-{ports[-1]} of host {context.host} are all taken",
        fix="install mpi4py, or set MASTER_ADDR and MASTER_PORT",
    )


def _socket_file(context: LaunchContext) -> Path:
    folder = Path(tempfile.gettempdir()) / f"runner-{os.getuid()}"
    if len(str(folder)) > 70:  # a socket's path has room for 107 characters (unix(7))
        folder = Path("/tmp") / folder.name  # noqa: S108 - it is made for this user alone
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise RendezvousError(
            f"cannot make {folder}: {error.strerror}",
            fix="remove what is there, or set TMPDIR to a folder of your own",
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise RendezvousError(
            f"{folder} is a link, belongs to another user, or can be written by others",
            fix="remove it, or set TMPDIR to a folder of your own",
        )
    return folder / f"{hashlib.sha256((context.job_id or '').encode()).hexdigest()[:24]}.socket"


def _listen_on_file(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists() and _is_dead(path):
        path.unlink(missing_ok=True)  # left by a job that was killed
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise RendezvousError(f"another rank 0 of this job listens at {path}: {error}") from None
    listener.listen(4096)
    return listener


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return True
    return False
