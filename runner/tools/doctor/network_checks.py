"""Host names, connections and clocks."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from runner.base.errors import RendezvousError
from runner.job import Job
from runner.rendezvous.transport.client import answers, connect
from runner.rendezvous.transport.endpoint import listen, port_of
from runner.rendezvous.transport.interfaces import is_virtual, own_addresses
from runner.rendezvous.transport.protocol import ProtocolError
from runner.rendezvous.transport.secret import derived
from runner.rendezvous.transport.server import Server
from runner.tools.doctor.examine import Team, Verdict, fail, ok, warn, where

_REQUEST = 64  # bytes, at most
_CONNECTING = 1.0  # seconds
_LOOPBACK = [("lo", "127.0.0.1"), ("lo", "::1")]
_SHOWN = 4  # lines of one kind that are printed
_SLOW_LOOKUP = 1.0  # seconds
# Above the first, times in logs and of files mislead. Munge and Kerberos refuse credentials above some minutes.
_CLOCKS_WARN, _CLOCKS_FAIL = 1.0, 60.0  # seconds


def names(job: Job, team: Team) -> Verdict:
    """Check what each host's own name resolves to on it, and whether it resolves the name of rank 0's host."""
    found = team.gather(_look_up(job) if job.local_rank == 0 else {})
    problems = [text for one in found if one for text in one["problems"]]
    if problems:
        return warn(
            _first(problems),
            "list all hosts with their addresses in DNS or /etc/hosts, no host with 127.x. The runner itself goes by "
            "addresses; mpirun, torchrun and gloo without GLOO_SOCKET_IFNAME go by names",
        )
    return ok(", ".join(one["own"] for one in found if one))


def _look_up(job: Job) -> dict[str, Any]:
    own, first = job.context.host, job.topology.hosts[0].name
    problems = []
    addresses, seconds = _resolve(own)
    if not addresses:
        problems.append(f"{own} does not resolve on that host itself")
    elif all(ipaddress.ip_address(address).is_loopback for address in addresses) and len(job.topology.hosts) > 1:
        problems.append(f"{own} is {addresses[0]} to itself, which no other host can reach")
    if seconds > _SLOW_LOOKUP:
        problems.append(f"{own} takes {seconds:.1f} s to look up its own name")
    if own != first and not _resolve(first)[0]:
        problems.append(f"{first}, the host of rank 0, does not resolve on {own}")
    return {"own": f"{own} is {addresses[0] if addresses else 'unknown'}", "problems": problems}


def _resolve(name: str) -> tuple[list[str], float]:
    start = time.monotonic()
    try:
        found = [
            str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        ]
    except OSError:
        found = []
    return list(dict.fromkeys(found)), time.monotonic() - start


@contextmanager
def _serving(job: Job) -> Iterator[int]:
    """Open a port on all of this host's addresses, where a thread answers the other ranks with its time."""
    over = threading.Event()

    def answer(listener: socket.socket) -> None:
        with suppress(RendezvousError), Server(listener, _key(job, job.rank), job.size, _REQUEST) as server:
            while not over.is_set():
                for peer, _ in server.receive(0.1):
                    peer.send(time.time(), within=_CONNECTING)

    with listen(loopback=False) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        try:
            yield port_of(listener)
        finally:
            over.set()
            thread.join()


def _key(job: Job, rank: int) -> bytes:
    """The key of one rank's server, as several hosts may use the same address."""
    return derived(job.endpoint.key, f"doctor on rank {rank}")


def _reaches(job: Job, rank: int, address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return answers(family, (address, port), _key(job, rank), _CONNECTING)


def _offset(job: Job, host: str, port: int) -> tuple[float, float] | None:
    """Return the seconds of a round trip to rank 0, and its clock minus this one; None without an answer."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with (
                suppress(OSError, ProtocolError),
                connect(family, address, _key(job, 0), job.rank, _CONNECTING) as rank_0,
            ):
                before = time.time()
                rank_0.send("time", _CONNECTING)
                there = float(rank_0.receive(_CONNECTING))
                after = time.time()
                # Cristian's algorithm: the answer was written in the middle of the round trip, ± half of it.
                return after - before, there - (before + after) / 2
    return None


def reach(job: Job, team: Team) -> Verdict:
    """Check that every rank reaches rank 0 and the next rank on the chosen interface. Try the other interfaces, too."""
    # On one host the ranks use loopback, or an interface that the user has chosen.
    within = _LOOPBACK if len(job.topology.hosts) == 1 else []
    with _serving(job) as port:
        all_addresses = [*within, *own_addresses(job.context.environment)]
        chosen_here = _chosen(job, all_addresses)
        # A bridge of containers, which leads to no other host, is no fault.
        addresses = [pair for pair in all_addresses if pair[0] == chosen_here or not is_virtual(pair[0])]
        servers = team.share([port, addresses, chosen_here])
        goals = sorted({0, (job.rank + 1) % job.size} - {job.rank})
        tries = [(goal, interface, address) for goal in goals for interface, address in servers[goal][1]]
        with ThreadPoolExecutor(max(1, len(tries))) as pool:
            answered = list(pool.map(lambda t: _reaches(job, t[0], t[2], servers[t[0]][0]), tries))
        found = team.gather([[*one, is_answered] for one, is_answered in zip(tries, answered, strict=True)])
    if job.size == 1:
        return ok("one rank: there is nobody to reach")
    chosen = [one[2] for one in servers]
    unreachable, elsewhere = _judge_reach(found, chosen, job)
    if unreachable:
        return fail(
            _first(unreachable),
            "open TCP between the hosts (firewall, routes, VLAN), or choose an interface that all of them share: "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
        )
    used = f"every rank reaches rank 0 and the next rank by {', '.join(dict.fromkeys(chosen))}"
    if elsewhere:
        return warn(
            f"{used}; but {_first(elsewhere)}",
            f"the runner keeps gloo on {chosen[0]}, and NCCL where its own choice leads nowhere; tell MPI too (Open MPI: --mca btl_tcp_if_include {chosen[0]}; "
            f"Hydra: -iface {chosen[0]})",
        )
    return ok(used)


def _first(texts: Sequence[str]) -> str:
    rest = len(texts) - _SHOWN
    return "; ".join(texts[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


def _chosen(job: Job, addresses: Sequence[tuple[str, str]]) -> str:
    """The interface that gloo will use on this rank."""
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return wanted or job.endpoint.interface or (addresses[0][0] if addresses else "")


def _judge_reach(found: Sequence[Any], chosen: Sequence[str], job: Job) -> tuple[list[str], list[str]]:
    """Return the failed connections on the chosen interfaces, and those on others."""
    unreachable, elsewhere = [], []
    for rank, tries in enumerate(found):
        for goal in sorted({goal for goal, *_ in tries} or ({0} - {rank})):
            answered = {i: any(a for g, j, _, a in tries if (g, j) == (goal, i)) for g, i, *_ in tries if g == goal}
            path = f"{where([rank], job.topology)} does not reach {where([goal], job.topology)}"
            if chosen[goal] not in answered:
                unreachable.append(f"{path}: that has no address on {chosen[goal] or 'any interface'}")
            elif not answered[chosen[goal]]:
                unreachable.append(f"{path} on {chosen[goal]}")
            elsewhere += [f"{path} on {i}" for i, reached in answered.items() if not reached and i != chosen[goal]]
    return unreachable, elsewhere


def clocks(job: Job, team: Team) -> Verdict:
    """Check that the hosts' clocks agree with rank 0's."""
    with _serving(job) as own_port:
        port = team.share(own_port)[0]
        host = (job.endpoint.rank_0 or (job.endpoint.host, 0))[0]
        asked = [_offset(job, host, port) for _ in range(5)] if job.rank else []
        answered = [answer for answer in asked if answer is not None]
        offsets = team.gather([0.0, 0.0] if job.rank == 0 else list(min(answered)) if answered else None)
    if job.size == 1:
        return ok("one rank: nothing to compare")
    silent = [rank for rank, answer in enumerate(offsets) if answer is None]
    if silent:
        return warn(
            f"{where(silent, job.topology)} could not ask rank 0 for the time at {host}", "see the check of reach"
        )
    # Only an offset beyond half of the round trip is certain.
    ahead = [max(0.0, abs(offset) - seconds / 2) for seconds, offset in offsets]
    worst = max(range(job.size), key=ahead.__getitem__)
    direction = "behind" if offsets[worst][1] > 0 else "ahead of"
    text = f"{where([worst], job.topology)} is {ahead[worst]:.3g} s {direction} rank 0"
    fix = "let NTP or chrony set the clocks of all hosts"
    if ahead[worst] > _CLOCKS_FAIL:
        return fail(text, fix)
    if ahead[worst] > _CLOCKS_WARN:
        return warn(text, fix)
    return ok(f"within {max(abs(offset) for _, offset in offsets) * 1000:.1f} ms of rank 0's")
