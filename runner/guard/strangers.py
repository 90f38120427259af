"""Ranks of the launch that run another program: the others would wait for them until their time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from runner.launch.siblings import OtherProgram, Siblings

_FIRST_LOOK, _LAST_LOOK = 3.0, 90.0  # seconds of waiting for the other ranks
_GROWTH = 1.5  # of the time until the next look
_REMARK = 10.0  # seconds of waiting after which a program that may yet start the runner is named
_SO_FAR = "runs another program so far"
_NAMED = 3  # ranks in a message


class Strangers:
    """What the other ranks of this host run, while this one waits for them."""

    def __init__(self, find: Callable[[], Siblings]) -> None:
        self._find = find
        self._began = time.monotonic()
        self._next, self._is_remarked, self._suspected = _FIRST_LOOK, False, set[OtherProgram]()
        self._found: Siblings | None = None  # what the thread has found
        self.known = ""  # in words, what was found last
        self._thread: threading.Thread | None = None

    def look(self) -> tuple[str, bool] | None:
        """What is to be said, "" if another rank says it, and whether these ranks will never meet; None for nothing new."""
        waited = time.monotonic() - self._began
        if self._found is not None:
            found, self._found = self._found, None
            return self._judge(found, waited)
        if waited > self._next and self._next < _LAST_LOOK and (self._thread is None or not self._thread.is_alive()):
            self._next = waited * _GROWTH
            # Reading of another process may hang, as one does that hangs in the kernel.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return None

    def _run(self) -> None:
        self._found = self._find()

    def _judge(self, found: Siblings, waited: float) -> tuple[str, bool] | None:
        self.known = in_words(found.others)
        final = {one for one in found.others if one.is_final}
        are_certain, self._suspected = bool(final & self._suspected), final  # it is seen twice
        if are_certain:
            return in_words(sorted(final)) if found.is_speaking else "", True
        if final:
            self._next = waited + 1.0
        elif found.others and waited > _REMARK and not self._is_remarked:
            self._is_remarked = True
            return f"waits for the other ranks: {in_words(found.others, _SO_FAR)}" if found.is_speaking else "", False
        return None


def in_words(found: Sequence[OtherProgram], what: str = "is another program") -> str:
    """``rank 1 is another program (sleep 60)``, of the first few."""
    texts = [f"rank {one.rank} {what} ({one.command})" for one in found[:_NAMED]]
    return ", ".join(texts) + (f", and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
