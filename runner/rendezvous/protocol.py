"""What goes over a socket between two processes of a job: the proofs that they are, then JSON messages.

Both sides prove that they know the job's key, by HMACs over nonces that either has just chosen; the key itself never
goes over the wire. A client has sent 60 bytes of a fixed form before anything else of it is read as a message. Each
message has a MAC that fits one place in one direction of one connection, so that nobody between the two can change,
repeat or leave out a message unnoticed.

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

# A record is a kilobyte or two; the answer holds what differs between ranks. Whatever claims to be larger is another protocol's.
LARGEST = 1 << 28


class ProtocolError(Exception):
    """What came over the socket is not of this protocol."""


class WrongJobError(ProtocolError):
    """The peer speaks the protocol and does not know the job's key."""


def greeting() -> bytes:
    """What a client sends first."""
    return _MAGIC + os.urandom(_NONCE)


class Handshake:
    """One connection's proofs, as either side makes and checks them."""

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
        """The bytes of the next message; of one for many, give its text, made once."""
        text = message if isinstance(message, bytes) else text_of(message)
        return _LENGTH.pack(len(text)) + self._mac(text) + text

    def take(self, received: bytearray, largest: int = LARGEST) -> tuple[bool, Any]:
        """(complete, message): the next message is taken out of what has come, if all of it has.

        Raises:
            ProtocolError: it is too large, not by the one who proved the key, or no JSON.
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
