"""The rendezvous without MPI: rank 0 listens where the others can find it, and they exchange records over sockets."""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from runner.base.errors import RendezvousError, UsageError
from runner.launch.context import LaunchContext
from runner.rendezvous.methods.local import listen_on_file, listen_on_name, named
from runner.rendezvous.records.exchange import Candidate, exchange_records, serve_records
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.transport.endpoint import Endpoint, listen, port_of
from runner.rendezvous.transport.interfaces import interface_towards, is_elsewhere
from runner.rendezvous.transport.secret import derived, job_key

_MOST_AT_ONCE = 16  # hosts beside the first that a rank tries in a round


def own_endpoint(listener: socket.socket, way: str, reached_by: str = "", key: bytes = b"") -> Endpoint:
    """Rank 0's endpoint, at the socket that it holds."""
    address = reached_by or listener.getsockname()[0]
    return Endpoint(
        host=address, port=port_of(listener), interface=interface_towards(address), way=way, key=key, listener=listener
    )


def by_environment(context: LaunchContext, own: RankRecord, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 listens at the endpoint that the user set, and the others connect to it."""
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
        exchanged = serve_records(listener, own, context.size.value, key, timeout)
        return exchanged.records, replace(own_endpoint(listener, "env", address, key), host=address)
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"MASTER_ADDR={address} does not resolve on host {context.host}: {error.strerror}",
            fix="set it to a name or an address of rank 0's host that every host knows",
        ) from None
    searched = f"rank 0 at MASTER_ADDR={address}, MASTER_PORT={port}"
    exchanged, _ = exchange_records(lambda: _resolve(address, [port]), own, key, timeout, searched)
    return exchanged.records, _others_endpoint(address, port, "env", key)


def by_file(context: LaunchContext, own: RankRecord, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 listens on a socket file, and by a name, that all ranks of the job can compute.

    The name is found also where TMPDIR, or what is mounted there, differs between the ranks; and the file where their network
    differs.
    """
    path = _socket_file(context)
    name = f"{path.parent.name}-{path.stem}"
    known = derived(b"", name)  # the folder keeps others out, and the user's number at the name
    if context.rank.value == 0:
        store, key = listen(loopback=True), os.urandom(32)
        with listen_on_file(path) as listener, ExitStack() as stack:
            own = replace(own, store=list(store.getsockname()[:2]), key=key.hex())
            by_name = listen_on_name(name)
            also = [stack.enter_context(by_name)] if by_name else []
            try:
                exchanged = serve_records(listener, own, context.size.value, known, timeout, also)
            finally:
                path.unlink(missing_ok=True)
        return exchanged.records, own_endpoint(store, "file", key=key)
    candidates = [(socket.AF_UNIX, address) for address in (str(path), named(name))]
    exchanged, _ = exchange_records(lambda: iter(candidates), own, known, timeout, f"rank 0 at {path}")
    first = exchanged.records[0]
    assert first.store is not None  # this runner's rank 0 always sends it
    assert first.key is not None
    address, port = first.store
    return exchanged.records, _others_endpoint(address, port, "file", bytes.fromhex(first.key))


def by_hosts(context: LaunchContext, own: RankRecord, timeout: float) -> tuple[Records, Endpoint]:
    """Rank 0 takes the first free of a few ports computed from the job's name; the others try them on the known hosts."""
    ports, key = candidate_ports(context.job_id or ""), job_key(context)
    if context.rank.value == 0:
        if len(context.hosts) == 1 and is_elsewhere(context.hosts[0]):
            raise UsageError(
                f"the others look for rank 0 at {context.hosts[0]}, as {context.launcher.title} says, and it is on host "
                f"{context.host}",
                fix="have rank 0 on that host, or set MASTER_ADDR (rank 0's host) and MASTER_PORT (a free port)",
            )
        listener = _first_free(ports, context)
        exchanged = serve_records(listener, own, context.size.value, key, timeout)
        address = exchanged.reached_by[0] if exchanged.reached_by else ""
        return exchanged.records, own_endpoint(listener, "hosts", address, key)
    searched = f"rank 0 on {', '.join(context.hosts[:4])} at one of ports {ports[0]}-{ports[-1]}"
    exchanged, reached = exchange_records(_in_turn(context.hosts, ports), own, key, timeout, searched)
    return exchanged.records, _others_endpoint(reached[0], reached[1], "hosts", key)


def _others_endpoint(address: str, port: int, way: str, key: bytes) -> Endpoint:
    return Endpoint(host=address, port=port, interface=interface_towards(address), way=way, key=key)


def candidate_ports(job: str, count: int = 8) -> list[int]:
    """Consecutive ports for a job, below the range from which kernels take ephemeral ports (32768 on Linux).

    Jobs on one host rarely get the same ports. If they do, rank 0 takes the next free port, and the
    job's key distinguishes the jobs.
    """
    first, last = 15000, 32000
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:8], "big")
    start = first + digest % (last - first - count)
    return list(range(start, start + count))


def _in_turn(hosts: Sequence[str], ports: Sequence[int]) -> Callable[[], Iterator[Candidate]]:
    """Return the hosts to try in each round: the first host, where rank 0 is as a rule, and then others in turn, twice as many each time.

    All ranks may wait for a rank 0 that is late, so no round tries more than some hosts, and each name is looked up once.
    """
    found: dict[str, list[Candidate]] = {}
    others = itertools.cycle(hosts[1:])
    numbers = itertools.chain(
        [0], (2**n for n in range(_MOST_AT_ONCE.bit_length() - 1)), itertools.repeat(_MOST_AT_ONCE)
    )

    def one_round() -> Iterator[Candidate]:
        for name in [hosts[0], *itertools.islice(others, min(next(numbers), len(hosts) - 1))]:
            found[name] = found.get(name) or list(_resolve(name, ports))
            yield from found[name]

    return one_round


def _resolve(name: str, ports: Sequence[int]) -> Iterator[Candidate]:
    """The addresses of a host, each with each of the ports; none if the name does not resolve, as it may later."""
    try:
        found = socket.getaddrinfo(name, ports[0], type=socket.SOCK_STREAM)
    except socket.gaierror:
        return
    for port in ports:
        for family, _, _, _, address in found:
            yield family, (address[0], port, *address[2:])


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
            f"cannot make {folder}: {error.strerror}", fix="remove what is there, or set TMPDIR to a folder of your own"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise RendezvousError(
            f"{folder} is a link, belongs to another user, or can be written by others",
            fix="remove it, or set TMPDIR to a folder of your own",
        )
    return folder / f"{hashlib.sha256((context.job_id or '').encode()).hexdigest()[:24]}.socket"
