"""Send trees from one host to the next: the first reads the shared file system, each other passes on what it receives.

host 0 ── state ─► host 1 ── state ─► host 2       which entries there are
       ◄─ wanted ──       ◄─ wanted ──             the files that a host, or one behind it, does not have
       ── pieces ─►       ── pieces ─►             their content, written and passed on at the same time
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.rendezvous.transport.client import connect
from runner.rendezvous.transport.protocol import GREETING, PROOF, Handshake, ProtocolError, Stream
from runner.staging.store import Held, hold, source_of
from runner.staging.tree import Copy, Entry, FilePiece, Part, entries_of, pieces_of

_SECONDS = 1900.0  # without a byte from a neighbour, which may wait for another job that makes the same copy
_AHEAD = 4  # pieces that are received, and that wait to be passed on
_CHUNK = 1 << 20


class NeighbourError(Exception):
    """The neighbour in the chain has ended, or sends what is not its."""


class Wire:
    """A connection to a neighbour on which both have proved that they belong to the job."""

    def __init__(self, connection: socket.socket, sent: Stream, received: Stream) -> None:
        self._connection, self._sent, self._received = connection, sent, received
        self._buffer = bytearray()
        connection.settimeout(_SECONDS)

    def send(self, message: Any, content: bytes = b"") -> None:
        """Send a message, and bytes with it.

        Raises:
            NeighbourError: the neighbour takes nothing.
        """
        digest = hashlib.blake2b(content, digest_size=16).hexdigest() if content else ""
        try:
            self._connection.sendall(self._sent.pack({"said": message, "bytes": len(content), "digest": digest}))
            self._connection.sendall(content)
        except OSError as error:
            raise NeighbourError(f"the next host takes nothing more ({error.strerror or error})") from None

    def receive(self) -> tuple[Any, bytes]:
        """Wait for a message and the bytes with it.

        Raises:
            UsageError: the neighbour says what prevents it.
            NeighbourError: it has ended, or the bytes were changed on the way.
        """
        try:
            while not (taken := self._received.take(self._buffer))[0]:
                self._receive_more()
            message = taken[1]
            while len(self._buffer) < message["bytes"]:
                self._receive_more()
        except (OSError, ProtocolError) as error:
            raise NeighbourError(f"a host of the chain has ended ({error or 'its connection is closed'})") from None
        content = bytes(memoryview(self._buffer)[: message["bytes"]])
        del self._buffer[: message["bytes"]]
        if content and hashlib.blake2b(content, digest_size=16).hexdigest() != message["digest"]:
            raise NeighbourError("a piece was changed on its way")
        return message["said"], content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive_more(self) -> None:
        chunk = self._connection.recv(_CHUNK)
        if not chunk:
            raise ProtocolError
        self._buffer += chunk


def accept(listener: socket.socket, key: bytes, within: float) -> Wire:
    """Wait for the next host's connection; others' are closed.

    Raises:
        NeighbourError: it has not come in time.
    """
    until = time.monotonic() + within
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        connection = None
        try:
            connection, _ = listener.accept()
            connection.settimeout(10.0)
            handshake = Handshake(key, _exactly(connection, GREETING))
            connection.sendall(handshake.answer)
            rank = handshake.rank_of(_exactly(connection, PROOF))
            received, sent = handshake.streams(rank)
            return Wire(connection, sent, received)
        except (OSError, ProtocolError):
            if connection is not None:
                connection.close()
    raise NeighbourError(f"the next host has not connected within {within:.0f} s")


def reach(addresses: Sequence[tuple[str, int]], key: bytes, rank: int, within: float) -> Wire:
    """Connect to the host before this one, by the first address that answers.

    Raises:
        NeighbourError: none does.
    """
    until = time.monotonic() + within
    while time.monotonic() < until:
        for host, port in addresses:
            with contextlib.suppress(OSError, ProtocolError):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                client = connect(family, (host, port), key, rank, 5.0)
                return Wire(client.connection, client.sent, client.received)
        time.sleep(0.1)
    raise NeighbourError(f"the host before this one does not answer at {', '.join(host for host, _ in addresses)}")


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        chunk = connection.recv(size - len(content))
        if not chunk:
            raise ProtocolError
        content += chunk
    return content


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A host's share of one path."""

    path: str
    bytes: int
    entries: int
    copied: int  # bytes that came over the network, or were read
    seconds: float


def send_tree(
    path: Path,
    folder: Path,
    *,
    job: str,
    keep: bool,
    before: Wire | None,
    behind: Wire | None,
    report: Callable[[int, int], None],
) -> tuple[Held, Sent]:
    """Take one path into the store of this host, and pass it on.

    Args:
        path: as the user has named it; it is read on the first host.
        folder: the store.
        job: the scheduler's name of the job.
        keep: whether the copy stays.
        before: the connection to the host before this one; None on the first.
        behind: to the one behind it; None on the last.
        report: called with the bytes that were sent or received, and all of them.

    Raises:
        UsageError: the path cannot be staged, here or on another host.
        NeighbourError: a neighbour has ended.
    """
    began, copied = time.monotonic(), 0
    try:
        if before is None:
            source = source_of(path)
            entries = entries_of(source)
        else:
            said, _ = before.receive()
            if "problem" in said:
                raise UsageError(said["problem"], fix=said["fix"])
            source, entries = Path(said["path"]), [Entry(*entry) for entry in said["entries"]]

        def relay(copy: Copy | None, missing: Sequence[int]) -> None:
            nonlocal copied
            if behind is not None:  # only now: two chains over the same hosts then wait for each other in one order
                behind.send({"path": str(source), "entries": entries})
            wanted = {*missing, *(behind.receive()[0]["wanted"] if behind is not None else ())}
            if before is not None:
                before.send({"wanted": sorted(wanted)})
            total = sum(entries[number].size for number in wanted)
            pieces = pieces_of(source, entries, wanted) if before is None else _received(before)
            for piece in _passed_on(pieces, behind):
                copied += len(piece.content)
                report(copied, total)
                if copy is not None:
                    copy.write(piece)
            if behind is not None:
                behind.send({"end": True})

        held = hold(folder, source, entries, relay, job=job, keep=keep, sent=True)
        if not held.is_new:
            relay(None, [])
    except UsageError as problem:
        if behind is not None:
            with contextlib.suppress(NeighbourError):
                behind.send({"problem": problem.message, "fix": problem.fix})
        raise
    size = sum(entry.size for entry in entries)
    seconds = time.monotonic() - began
    return held, Sent(path=str(source), bytes=size, entries=len(entries), copied=copied, seconds=round(seconds, 2))


def _received(before: Wire) -> Iterator[FilePiece]:
    """Receive pieces, some ahead."""
    with ThreadPoolExecutor(1) as receiver:
        ahead = collections.deque([receiver.submit(before.receive)])
        while True:
            said, content = ahead.popleft().result()
            if "problem" in said:
                raise UsageError(said["problem"], fix=said["fix"])
            if "end" in said:
                return
            ahead.append(receiver.submit(before.receive))
            yield FilePiece([Part(*part) for part in said["parts"]], content)


def _passed_on(pieces: Iterable[FilePiece], behind: Wire | None) -> Iterator[FilePiece]:
    """Pass pieces on while they are used here."""
    if behind is None:
        yield from pieces
        return
    with ThreadPoolExecutor(1) as sender:
        waiting = collections.deque[Any]()
        for piece in pieces:
            waiting.append(sender.submit(behind.send, {"parts": piece.parts}, piece.content))
            if len(waiting) > _AHEAD:
                waiting.popleft().result()
            yield piece
        for future in waiting:
            future.result()
