"""The protocol between two processes of a job: a handshake that authenticates both, then JSON messages.

Both sides prove that they know the job's key, by HMACs over two fresh nonces, one from each side; the key itself is
never sent. A client sends 60 bytes of a fixed form before anything else from it is read as a message. Each message has
a MAC that is valid at one position in one direction of one connection, so that nobody in between can change, repeat or
drop a message unnoticed.

    client → server    MAGIC, the client's nonce
    server → client    MAGIC, the server's nonce, HMAC(key, "host", both nonces)
    client → server    its rank, HMAC(key, "rank", both nonces, the rank)
    then, either way   length, MAC, JSON text
"""

from __future__ import annotations

import hmac
import json
import os
import struct
from typing import Any

_MAGIC = b"torchmpi"
_NONCE, _MAC = 16, 32  # bytes
_RANK = _LENGTH = struct.Struct("!I")

GREETING = len(_MAGIC) + _NONCE  # bytes that a client sends first
ANSWER = GREETING + _MAC
PROOF = _RANK.size + _MAC

# A record is a kilobyte or two; the answer holds what differs between ranks. A larger length comes from another protocol.
LARGEST = 1 << 28


class ProtocolError(Exception):
    """The bytes received are not of this protocol."""


class WrongJobError(ProtocolError):
    """The peer speaks the protocol, but does not know the job's key."""


def greeting() -> bytes:
    """Return the first message of a client."""
    return _MAGIC + os.urandom(_NONCE)


class Handshake:
    """The proofs of one connection, made and checked by either side."""

    def __init__(self, key: bytes, greeting: bytes, answer: bytes = b"") -> None:
        """Take the client's greeting; on the client's side also the server's answer.

        Raises:
            ProtocolError: this is another protocol.
            WrongJobError: the server's proof is wrong.
        """
        if not greeting.startswith(_MAGIC) or not (answer or _MAGIC).startswith(_MAGIC):
            raise ProtocolError
        nonce = answer[len(_MAGIC) : GREETING] or os.urandom(_NONCE)
        self._key, self._nonces = key, greeting[len(_MAGIC) :] + nonce
        self.answer = _MAGIC + nonce + self._mac(b"host")
        if answer and not hmac.compare_digest(self.answer, answer):
            raise WrongJobError

    def proof(self, rank: int) -> bytes:
        """The client's rank, and the proof of it."""
        number = _RANK.pack(rank)
        return number + self._mac(b"rank" + number)

    def rank_of(self, proof: bytes) -> int:
        """The rank that the client has proved.

        Raises:
            WrongJobError: the proof is wrong.
        """
        (rank,) = _RANK.unpack_from(proof)
        if not hmac.compare_digest(self.proof(rank), proof):
            raise WrongJobError
        return int(rank)

    def streams(self, rank: int) -> tuple[Stream, Stream]:
        """(from the client to the server, from the server to the client)."""
        number = _RANK.pack(rank)
        return Stream(self._mac(b"to host" + number)), Stream(self._mac(b"from host" + number))

    def _mac(self, text: bytes) -> bytes:
        return hmac.digest(self._key, self._nonces + text, "sha256")


def text_of(message: Any) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode()


class Stream:
    """The messages of one direction of a connection, as its sender packs them or its receiver takes them."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def pack(self, message: Any) -> bytes:
        """The bytes of the next message: an object, or its ``text_of`` where many connections send the same."""
        text = message if isinstance(message, bytes) else text_of(message)
        return _LENGTH.pack(len(text)) + self._mac(text) + text

    def take(self, received: bytearray, largest: int = LARGEST) -> tuple[bool, Any]:
        """(complete, message): removes the next message from the received bytes, if it is complete.

        Raises:
            ProtocolError: it is too large, its MAC is wrong, or it is not JSON.
        """
        start = _LENGTH.size + _MAC
        if len(received) < _LENGTH.size:
            return False, None
        (length,) = _LENGTH.unpack_from(received)
        if length > largest:
            raise ProtocolError
        if len(received) < start + length:
            return False, None
        text = bytes(received[start : start + length])
        if not hmac.compare_digest(self._mac(text), bytes(received[_LENGTH.size : start])):
            raise WrongJobError
        del received[: start + length]
        try:
            return True, json.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolError from None

    def _mac(self, text: bytes) -> bytes:
        mac = hmac.digest(self._key, self._number.to_bytes(8, "big") + text, "sha256")
        self._number += 1
        return mac
