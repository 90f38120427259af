"""The shuffled order of an epoch, computed where it is needed and held nowhere."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy
from numpy.typing import NDArray

# Up to this many numbers are shuffled as a list, which takes a millisecond, and makes any order as likely as any other.
_LISTED = 1 << 16
_ROUNDS = 6  # four are enough if the functions are random themselves (M. Luby and C. Rackoff, 1988)
_Numbers = NDArray[numpy.uint64]


class Permutation:
    """An order of the numbers below ``length`` that depends on a key, of which any part can be read by itself.

    A list of 10⁸ numbers would take gigabytes on each rank. A Feistel network permutes the numbers of a given count of bits. It is
    applied again to the results that are not below ``length`` ("cycle walking": J. Black and P. Rogaway, Ciphers with arbitrary finite
    domains, 2002), which takes two turns at most on average.
    """

    def __init__(self, length: int, key: str) -> None:
        self.length = length
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = numpy.frombuffer(digest, dtype=numpy.uint64)
        self._list: NDArray[Any] | None = None
        if length <= _LISTED:
            marks = _mixed(_mixed(numpy.arange(length, dtype=numpy.uint64) ^ self._keys[0]) ^ self._keys[1])
            self._list = numpy.argsort(marks, kind="stable")
        bits = max(length - 1, 1).bit_length()
        self._low = numpy.uint64(bits // 2)
        self._masks = numpy.uint64((1 << (bits - bits // 2)) - 1), numpy.uint64((1 << bits // 2) - 1)

    def at(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers at these places of the order."""
        if self._list is not None:
            listed: NDArray[Any] = self._list[places]
            return listed
        found = self._once(places.astype(numpy.uint64))
        while len(beyond := numpy.flatnonzero(found >= self.length)):
            found[beyond] = self._once(found[beyond])
        return found

    def _once(self, numbers: _Numbers) -> _Numbers:
        halves = [numbers >> self._low, numbers & self._masks[1]]
        for turn, key in enumerate(self._keys):
            changed = turn % 2
            halves[changed] ^= _mixed(halves[1 - changed] ^ key) & self._masks[changed]
        return (halves[0] << self._low) | halves[1]


def _mixed(numbers: _Numbers) -> _Numbers:
    """Return numbers whose bits each depend on all bits of the given ones: the finalizer of MurmurHash3 (A. Appleby, 2008)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers ^= numbers >> numpy.uint64(33)
        numbers *= numpy.uint64(factor)
    numbers ^= numbers >> numpy.uint64(33)
    return numbers
