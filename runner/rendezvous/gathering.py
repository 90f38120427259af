"""The exchange of records over sockets, for jobs without MPI.

Every rank connects to rank 0, says the job's token and its own record, hears at once whether it reached
its own job, and hears all records when the last rank has come.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from runner.errors import RefusedError, RendezvousError
from runner.rendezvous.frames import NotOurs, pack, receive, unpack

Record = dict[str, Any]

# The first word of a message, so that a stranger's JSON is not taken for ours.
_PROTOCOL = "torch-mpi-runner/1"
_HELLO_LIMIT = 1 << 20
_FIRST_NOTICE, _NEXT_NOTICES = 10.0, 30.0  # seconds of silence before rank 0 says whom it waits for


@dataclass(frozen=True)
class Gathering:
    """All records in rank order, and the addresses that rank 0 was reached by, most used first."""

    records: list[Record]
    reached_by: list[str]


@dataclass
class _Visitor:
    connection: socket.socket
    received: bytearray
    rank: int | None = None


def host(listener: socket.socket, own: Record, size: int, token: str, timeout: float) -> Gathering:
    """Collect every rank's record on rank 0, and answer each with all of them.

    Raises:
        RendezvousError: ranks were missing when the time was over.
        RefusedError: two processes claim the same rank.
    """
    records: dict[int, Record] = {0: own}
    visitors: list[_Visitor] = []
    start = time.monotonic()
    notice = start + _FIRST_NOTICE
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while len(records) < size:
                now = time.monotonic()
                if now - start > timeout:
                    absent = _listed(set(range(size)) - set(records))
                    raise RendezvousError(
                        f"{len(records)} of {size} ranks met within {timeout:.0f} s; absent: {absent}. Look at those "
                        "ranks' own messages, or allow more time with --timeout",
                    )
                if now > notice:
                    _say_absent(set(range(size)) - set(records), size, now - start, timeout)
                    notice = now + _NEXT_NOTICES
                for key, _ in selector.select(0.2):
                    if key.fileobj is listener:
                        connection, _ = listener.accept()
                        connection.setblocking(False)
                        visitor = _Visitor(connection, bytearray())
                        visitors.append(visitor)
                        selector.register(connection, selectors.EVENT_READ, visitor)
                    else:
                        _hear(key.data, records, token, selector)
            reached_by = [v.connection.getsockname()[0] for v in visitors if v.rank is not None and _is_inet(v)]
            ordered = [records[rank] for rank in range(size)]
            gathering = Gathering(ordered, [_plain(a) for a, _ in Counter(reached_by).most_common()])
            _answer(visitors, {"records": ordered, "reached_by": gathering.reached_by})
            return gathering
        except RefusedError as error:
            _answer(visitors, {"refused": str(error)})
            raise
        finally:
            for visitor in visitors:
                visitor.connection.close()
            listener.setblocking(True)


def _hear(visitor: _Visitor, records: dict[int, Record], token: str, selector: selectors.BaseSelector) -> None:
    """Read what a visitor sent; enter its record, or show it out."""
    try:
        piece = visitor.connection.recv(1 << 16)
        visitor.received += piece
        complete, hello = unpack(visitor.received, _HELLO_LIMIT) if piece else (False, None)
        if piece and not complete:
            return
        if not isinstance(hello, dict) or hello.get("protocol") != _PROTOCOL or hello.get("token") != token:
            raise NotOurs
        visitor.connection.settimeout(10)
        visitor.connection.sendall(pack({"protocol": _PROTOCOL, "token": token}))
    except (OSError, NotOurs):
        selector.unregister(visitor.connection)
        visitor.connection.close()
        visitor.received.clear()
        visitor.rank = None
        return
    selector.unregister(visitor.connection)
    rank, record = hello["rank"], hello["record"]
    visitor.rank = rank
    # One that found the door shut for too long comes again: the same process, not another.
    if rank in records and not _is_same_process(records[rank], record):
        raise RefusedError(
            f"two processes are rank {rank} of the same job: process {records[rank].get('pid')} on "
            f"{records[rank].get('host')} and process {record.get('pid')} on {record.get('host')}; "
            "start each rank once, through one launcher"
        )
    records[rank] = record


def _is_same_process(one: Record, other: Record) -> bool:
    return one.get("pid") is not None and all(one.get(name) == other.get(name) for name in ("host_key", "pid"))


def _answer(visitors: list[_Visitor], answer: dict[str, Any]) -> None:
    data = pack(answer)
    for visitor in visitors:
        if visitor.rank is not None:
            try:
                visitor.connection.sendall(data)
            except OSError:
                continue  # that rank has died; its own launcher sees to it


def join(
    doors: Callable[[], Iterator[tuple[socket.AddressFamily, Any]]],
    own: Record,
    rank: int,
    token: str,
    timeout: float,
    whom: str,
) -> tuple[Gathering, Any]:
    """Find rank 0 behind one of the doors, give it this rank's record, and wait for all records.

    Args:
        doors: makes the socket addresses to try, anew for every round.
        whom: what is looked for, for messages.

    Returns:
        The gathering, and the socket address that led to it.

    Raises:
        RendezvousError: nobody of this job answered in time, or rank 0 went away.
        RefusedError: rank 0 refused the job.
    """
    start = time.monotonic()
    failure = "nothing tried"
    pause = 0.02
    while time.monotonic() - start < timeout:
        for family, address in doors():
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # the kernel has no such family
                failure = f"{_door(address)}: {_reason(error)}"
                continue
            try:
                connection.settimeout(2.0)
                connection.connect(address)
                connection.sendall(pack({"protocol": _PROTOCOL, "token": token, "rank": rank, "record": own}))
                hello = receive(connection)
                if hello.get("token") != token:
                    raise NotOurs
            except (OSError, NotOurs, AttributeError) as error:
                connection.close()
                failure = f"{_door(address)}: {_reason(error)}"
                continue
            with connection:
                return _wait_for_answer(connection, start, timeout), address
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
    raise RendezvousError(f"did not find {whom} within {timeout:.0f} s (last tried {failure})")


def _wait_for_answer(connection: socket.socket, start: float, timeout: float) -> Gathering:
    # Rank 0 gives up at its own deadline and says who is absent; wait a little longer than that.
    connection.settimeout(max(1.0, timeout + 5.0 - (time.monotonic() - start)))
    try:
        answer = receive(connection)
    except (OSError, NotOurs):
        raise RendezvousError("rank 0 was found, but ended before all ranks had met; see its own message") from None
    if "refused" in answer:
        raise RefusedError(answer["refused"], told_by_all=True)
    return Gathering(answer["records"], answer["reached_by"])


def _say_absent(absent: set[int], size: int, waited: float, timeout: float) -> None:
    print(
        f"runner: waiting for {len(absent)} of {size} ranks ({_listed(absent)}) since {waited:.0f} s, "
        f"until {timeout:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _listed(ranks: set[int], most: int = 8) -> str:
    names = ", ".join(str(rank) for rank in sorted(ranks)[:most])
    return f"rank {names}" + (f" and {len(ranks) - most} more" if len(ranks) > most else "")


def _is_inet(visitor: _Visitor) -> bool:
    return visitor.connection.family in (socket.AF_INET, socket.AF_INET6)


def _plain(address: str) -> str:
    """An IPv4 address that a dual-stack socket shows as ``::ffff:10.0.0.1``, in its usual form."""
    return address.removeprefix("::ffff:") if "." in address else address


def _door(address: Any) -> str:
    return str(address) if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _reason(error: Exception) -> str:
    if isinstance(error, NotOurs):
        return "another program answers there"
    return str(getattr(error, "strerror", None) or error)
