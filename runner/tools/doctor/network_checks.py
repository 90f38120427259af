"""Whether the hosts know, reach and agree with each other."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runner.job import Job
from runner.rendezvous.endpoint import listen, port_of
from runner.rendezvous.interfaces import own_addresses
from runner.tools.doctor.examine import Team, Verdict, fail, ok, warn, where

_TOKEN_BYTES = 16
_CONNECTING = 1.0  # seconds
_LOOPBACK = [("lo", "127.0.0.1"), ("lo", "::1")]
_SHOWN = 4  # of many lines of a kind
_SLOW_LOOKUP = 1.0  # seconds
# Above the first, times in logs and of files mislead; munge and Kerberos refuse credentials above some minutes.
_CLOCKS_WARN, _CLOCKS_FAIL = 1.0, 60.0  # seconds


def names(job: Job, team: Team) -> Verdict:
    """What each host's own name resolves to there, and whether it knows the name of rank 0's host."""
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


class _Door:
    """A port on all of this host's addresses, behind which a thread says a token, and what time it is."""

    def __init__(self) -> None:
        self.listener = listen(loopback=False)
        self.port = port_of(self.listener)
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        threading.Thread(target=self._greet, daemon=True).start()

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def _greet(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
                with connection:
                    connection.sendall(self.token + struct.pack("!d", time.time()))
            except OSError:
                if self.listener.fileno() < 0:
                    return


def _ask(address: str, port: int, token: bytes) -> tuple[float, float] | None:
    """(seconds it took, the time there minus the time here) where the door of that token answers, else None."""
    size = _TOKEN_BYTES + 8
    try:
        before = time.time()
        with socket.create_connection((address, port), timeout=_CONNECTING) as connection:
            answer = connection.recv(size, socket.MSG_WAITALL)
        after = time.time()
    except OSError:
        return None
    if len(answer) < size or answer[:_TOKEN_BYTES] != token:
        return None
    # Cristian's algorithm: the answer was written in the middle, give or take half of the time that it took.
    return after - before, struct.unpack("!d", answer[_TOKEN_BYTES:])[0] - (before + after) / 2


def reach(job: Job, team: Team) -> Verdict:
    """Whether every rank reaches rank 0 and the next rank on the chosen interface; the others are tried as well."""
    # On one host the ranks talk by loopback, or by an interface that the user has chosen.
    within = _LOOPBACK if len(job.topology.hosts) == 1 else []
    with _Door() as door:
        addresses = [*within, *own_addresses(job.context.environment)]
        doors = team.share([door.port, door.token.hex(), addresses, _chosen(job, addresses)])
        goals = sorted({0, (job.rank + 1) % job.size} - {job.rank})
        tries = [(goal, interface, address) for goal in goals for interface, address in doors[goal][2]]
        with ThreadPoolExecutor(max(1, len(tries))) as pool:
            answers = list(
                pool.map(lambda t: _ask(t[2], doors[t[0]][0], bytes.fromhex(doors[t[0]][1])) is not None, tries)
            )
        found = team.gather([[*one, answered] for one, answered in zip(tries, answers, strict=True)])
    if job.size == 1:
        return ok("one rank: there is nobody to reach")
    chosen = [one[3] for one in doors]
    blind, astray = _judge_reach(found, chosen, job)
    if blind:
        return fail(
            _first(blind),
            "open TCP between the hosts (firewall, routes, VLAN), or choose an interface that all of them share: "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
        )
    used = f"every rank reaches rank 0 and the next rank by {', '.join(dict.fromkeys(chosen))}"
    if astray:
        return warn(
            f"{used}; but {_first(astray)}",
            f"the runner keeps gloo and NCCL on {chosen[0]}; tell MPI too (Open MPI: --mca btl_tcp_if_include {chosen[0]}; "
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
    """What is not reached on the interfaces chosen, and what is not on others."""
    blind, astray = [], []
    for rank, tries in enumerate(found):
        for goal in sorted({goal for goal, *_ in tries} or ({0} - {rank})):
            answered = {i: any(a for g, j, _, a in tries if (g, j) == (goal, i)) for g, i, *_ in tries if g == goal}
            path = f"{where([rank], job.topology)} does not reach {where([goal], job.topology)}"
            if chosen[goal] not in answered:
                blind.append(f"{path}: that has no address on {chosen[goal] or 'any interface'}")
            elif not answered[chosen[goal]]:
                blind.append(f"{path} on {chosen[goal]}")
            astray += [f"{path} on {i}" for i, reached in answered.items() if not reached and i != chosen[goal]]
    return blind, astray


def clocks(job: Job, team: Team) -> Verdict:
    """How far the clocks of the hosts are from rank 0's."""
    with _Door() as door:
        port, token = team.share([door.port, door.token.hex()])[0]
        host = (job.endpoint.door or (job.endpoint.host, 0))[0]
        asked = [_ask(host, port, bytes.fromhex(token)) for _ in range(5)] if job.rank else []
        answers = [answer for answer in asked if answer is not None]
        offsets = team.gather([0.0, 0.0] if job.rank == 0 else list(min(answers)) if answers else None)
    if job.size == 1:
        return ok("one rank: nothing to compare")
    silent = [rank for rank, answer in enumerate(offsets) if answer is None]
    if silent:
        return warn(
            f"{where(silent, job.topology)} could not ask rank 0 for the time at {host}", "see the check of reach"
        )
    # Sure is only what goes beyond half of the time that the answer took.
    ahead = [max(0.0, abs(offset) - seconds / 2) for seconds, offset in offsets]
    worst = max(range(job.size), key=ahead.__getitem__)
    direction = "behind" if offsets[worst][1] > 0 else "ahead of"
    text = f"{where([worst], job.topology)} is {ahead[worst]:.3g} s {direction} rank 0"
    mend = "let NTP or chrony set the clocks of all hosts"
    if ahead[worst] > _CLOCKS_FAIL:
        return fail(text, mend)
    if ahead[worst] > _CLOCKS_WARN:
        return warn(text, mend)
    return ok(f"within {max(abs(offset) for _, offset in offsets) * 1000:.1f} ms of rank 0's")
