"""When all ranks are started again after a failure (``--restart-in-place``)."""

from __future__ import annotations


class Restarts:
    """The attempts of a job."""

    def __init__(self, most: int, rank: int, size: int) -> None:
        """``most``: how often all ranks are started again."""
        self.most, self._rank, self._size = most, rank, size
        self.attempt = 0
        self.is_possible = most > 0  # as far as the other guards say
        self.done: set[int] = set()  # ranks whose workers have ended well in this attempt

    def next(self) -> None:
        """Another attempt begins."""
        self.attempt += 1
        self.done = set()

    def finish(self) -> bool:
        """This rank's worker has ended well. Returns whether that is new."""
        is_new = self._rank not in self.done
        self.done.add(self._rank)
        return is_new

    def unfinished(self, known: set[int] | None = None) -> set[int]:
        """The other ranks that have not ended well. ``known``: those of which the end would be told; None: all."""
        return (set(range(self._size)) if known is None else known) - self.done - {self._rank}
