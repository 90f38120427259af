"""The exchange of records over sockets, for jobs without MPI.

Every rank connects to rank 0, both prove that they belong to the job, the rank sends its record, and it receives all
records when the last rank has connected.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runner.base.errors import RefusedError, RendezvousError, raised_on_all_ranks
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Flat, Records, flat, is_flat, packed
from runner.rendezvous.records.topology import ranks_text
from runner.rendezvous.transport.client import Client, UnreachableError, connect
from runner.rendezvous.transport.protocol import ProtocolError, WrongJobError, text_of
from runner.rendezvous.transport.secret import VARIABLE
from runner.rendezvous.transport.server import Peer, Server

_LARGEST_RECORD = 1 << 20  # bytes
_ANSWERING = 10.0  # seconds for sending the answer
_CONNECTING = 2.0  # seconds for one address
_EARLIER = 5.0  # seconds before rank 0 does, at which a rank that has not found it gives up
_FIRST_NOTICE, _NEXT_NOTICES = 10.0, 30.0  # seconds before rank 0 prints which ranks it waits for
_MOST_ANSWERING = 30.0  # seconds, in the end, for the answer of one that takes connections: it may be a busy rank 0

Candidate = tuple[socket.AddressFamily, Any]  # an address that may be rank 0's


class Exchanged(NamedTuple):
    """All records, and the addresses at which rank 0 was reached, most used first."""

    records: Records
    reached_by: list[str]


def serve_records(
    listener: socket.socket, own: RankRecord, size: int, key: bytes, timeout: float, also: Sequence[socket.socket] = ()
) -> Exchanged:
    """Collect the records of all ranks on rank 0, and send all of them to each rank.

    Args:
        also: listening sockets at which ranks may come, too.

    Raises:
        RendezvousError: ranks were missing when the time was over.
        RefusedError: two processes claim the same rank.
    """
    records: dict[int, Flat] = {0: flat(own)}
    absent = set(range(1, size))
    start = time.monotonic()
    notice = start + _FIRST_NOTICE
    with Server(listener, key, size, _LARGEST_RECORD, also) as server:
        try:
            while len(records) < size:
                now = time.monotonic()
                if now - start > timeout:
                    raise RendezvousError(
                        f"{len(records)} of {size} ranks met within {timeout:.0f} s; absent: {_listed(absent)}"
                        f"{_strangers(server)}",
                        fix="look at those ranks' own messages, or allow more time with --timeout",
                    )
                if now > notice:
                    _report_absent(absent, size, now - start, timeout, _strangers(server))
                    notice = now + _NEXT_NOTICES
                for peer, record in server.receive(0.2):
                    _enter(peer, record, records)
                    absent.difference_update({peer.rank} & records.keys())
            ordered = [records[rank] for rank in range(size)]
            addresses = Counter(
                _plain(peer.connection.getsockname()[0]) for peer in server.ranks.values() if _is_inet(peer)
            )
            answer = {"records": packed(ordered), "reached_by": [address for address, _ in addresses.most_common()]}
            _answer(server, answer)
            return _exchanged(answer)
        except RefusedError as error:
            _answer(server, {"refused": error.message, "fix": error.fix})
            raise


def _enter(peer: Peer, record: Any, records: dict[int, Flat]) -> None:
    rank = peer.rank
    if rank is None or not is_flat(record) or record.get("rank", rank) != rank:
        return  # it knows the key but sends no record, so it is of another version; it counts as absent
    # A rank that was not answered in time connects again: then it is the same process, not a second one.
    if rank in records and not _is_same_process(records[rank], record):
        raise RefusedError(
            f"two processes are rank {rank} of the same job: process {records[rank].get('pid')} on "
            f"{records[rank].get('host')} and process {record.get('pid')} on {record.get('host')}",
            fix="start each rank once, through one launcher",
        )
    records[rank] = record


def _is_same_process(one: Flat, other: Flat) -> bool:
    return bool(one.get("pid")) and all(one.get(name) == other.get(name) for name in ("host", "host_key", "pid"))


def _answer(server: Server, answer: dict[str, Any]) -> None:
    text, deadline = text_of(answer), time.monotonic() + _ANSWERING
    for peer in server.proved():  # if this fails the rank has died, which its launcher handles
        peer.send(text, within=max(0.1, deadline - time.monotonic()))


def exchange_records(
    candidates: Callable[[], Iterator[Candidate]], own: RankRecord, key: bytes, timeout: float, searched: str
) -> tuple[Exchanged, Any]:
    """Find rank 0 at one of the candidate addresses, send it this rank's record, and wait for all records.

    Args:
        candidates: yields the socket addresses to try; called again for every round.
        searched: what is looked for, in the words of messages.

    Returns:
        What the ranks have exchanged, and the socket address at which rank 0 answered.

    Raises:
        RendezvousError: no process of this job answered in time, or rank 0 ended.
        RefusedError: rank 0 refused the job.
    """
    start = time.monotonic()
    patient: dict[str, float] = {}  # seconds for those that have not answered in time
    failures: dict[str, OSError | ProtocolError] = {}  # of each address the last one, the newest at the end
    # Rank 0 knows only that this one is absent; this one knows why, so it gives up first.
    patience = timeout - min(_EARLIER, timeout / 2)
    for family, address, left in _tries(candidates, start + patience):
        try:
            within = patient.get(_shown(address), _CONNECTING)
            client = connect(family, address, key, own.rank, min(within, left))
            with client:
                client.send(flat(own), _CONNECTING)
                return _wait_for_answer(client, start, timeout), address
        except (OSError, ProtocolError) as error:
            if isinstance(error, TimeoutError):  # it takes connections, and does not answer in time
                patient[_shown(address)] = min(2 * within, _MOST_ANSWERING)
            failures.pop(_shown(address), None)
            failures[_shown(address)] = error
    raise RendezvousError(f"did not find {searched} within {patience:.0f} s ({_found(failures)})", fix=_fix(failures))


def _tries(
    candidates: Callable[[], Iterator[Candidate]], until: float
) -> Iterator[tuple[socket.AddressFamily, Any, float]]:
    """Yield the candidate addresses and the seconds left, round by round, with pauses in between that differ between ranks."""
    pause = 0.02
    while time.monotonic() < until:
        for family, address in candidates():
            if (left := until - time.monotonic()) <= 0:
                return
            yield family, address, left
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - so that many ranks do not come at once
        pause = min(pause * 1.5, 1.0)


def _found(failures: Mapping[str, OSError | ProtocolError]) -> str:
    """Return the finding at the addresses: at one where a runner answers, if there is one, else at the last."""
    if runners := _of_kind(failures, WrongJobError):
        return (
            f"at {runners[-1]} a runner answers that does not know this job's secret: it is another job's, or on a host that "
            "does not share your home folder"
        )
    if not failures:
        return "no address was tried"
    address, error = list(failures.items())[-1]
    return f"last tried {address}: {_reason(error)}"


def _fix(failures: Mapping[str, OSError | ProtocolError]) -> str:
    """Return advice for a rank 0 that was not found at any of these addresses."""
    if _of_kind(failures, WrongJobError):
        return f"if it is this job's, set {VARIABLE} to one text on all hosts"
    if unreachable := _of_kind(failures, UnreachableError):
        return f"a firewall may block {unreachable[-1]}"
    return "see whether rank 0 has started, or allow more time with --timeout"


def _of_kind(failures: Mapping[str, OSError | ProtocolError], kind: type[Exception]) -> list[str]:
    return [address for address, error in failures.items() if isinstance(error, kind)]


def _wait_for_answer(client: Client, start: float, timeout: float) -> Exchanged:
    # Rank 0 gives up at its own deadline and prints which ranks are absent; wait a little longer than that.
    try:
        answer = client.receive(max(1.0, timeout + 5.0 - (time.monotonic() - start)))
    except (OSError, ProtocolError):
        raise RendezvousError(
            "rank 0 was found, but ended before all ranks had met", fix="see its own message"
        ) from None
    if "refused" in answer:
        with raised_on_all_ranks():
            raise RefusedError(answer["refused"], fix=answer.get("fix", ""))
    return _exchanged(answer)


def _exchanged(answer: dict[str, Any]) -> Exchanged:
    return Exchanged(Records.received(answer["records"]), answer["reached_by"])


def _report_absent(absent: set[int], size: int, waited: float, timeout: float, strangers: str) -> None:
    print(
        f"runner: waiting for {len(absent)} of {size} ranks ({_listed(absent)}) since {waited:.0f} s, "
        f"until {timeout:.0f} s{strangers}",
        file=sys.stderr,
        flush=True,
    )


def _strangers(server: Server) -> str:
    if not server.unproved:
        return ""
    return (
        f"; {server.unproved} times a runner came that does not know this job's secret: if it is this job's, its host "
        f"does not share your home folder, so set {VARIABLE} to one text on all hosts"
    )


def _listed(ranks: set[int], most: int = 8) -> str:
    return ranks_text(sorted(ranks)[:most]) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")


def _is_inet(peer: Peer) -> bool:
    return peer.connection.family in (socket.AF_INET, socket.AF_INET6)


def _plain(address: str) -> str:
    """An address with IPv4 in its usual form, also where a dual-stack socket shows it as ``::ffff:10.0.0.1``."""
    return address.removeprefix("::ffff:") if "." in address else address


def _shown(address: Any) -> str:
    return address.replace("\0", "@") if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _reason(error: Exception) -> str:
    if isinstance(error, ProtocolError):
        return "another program answers there"
    return str(getattr(error, "strerror", None) or error)
