"""Run a check on all ranks at once, with a time limit, so that a rank that hangs cannot block the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner.job import Job
from runner.rendezvous.records.topology import Topology, ranks_text
from runner.rendezvous.transport.control_channel import ControlChannel

_SKEW = 2.0  # seconds between the first and the last rank to begin a check
_LARGE = 128  # ranks; a larger job gets proportionally more time


@dataclass(frozen=True)
class Verdict:
    """The finding of a check, and the fix."""

    status: str  # ok, warn, fail
    detail: str
    fix: str = ""


ok, warn, fail = partial(Verdict, "ok"), partial(Verdict, "warn"), partial(Verdict, "fail")


class _Ended(Exception):
    """The check is over on this rank."""


class Team:
    """The other ranks as a check on every rank sees them.

    A check examines its own rank, may ``share`` what the other ranks need, and must ``gather`` once: after that only
    rank 0 continues, and judges the results of all.
    """

    def __init__(self) -> None:
        self.outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()

    def share(self, value: Any) -> list[Any]:
        """The values of all ranks, on all ranks. They must be JSON values."""
        return self._ask("share", value)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on rank 0; the check ends here on the other ranks."""
        return self._ask("gather", value)

    def _ask(self, what: str, value: Any) -> list[Any]:
        self.outbox.put((what, value))
        values = self.inbox.get()
        if values is None:
            raise _Ended
        return values


CheckFunction = Callable[[Job, Team], Verdict]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, and its time limit ``within`` in seconds, for up to 128 ranks."""

    name: str
    function: CheckFunction
    within: float = 4.0
    after: tuple[str, ...] = ()  # checks that must run before


def examine(check: Check, job: Job, channel: ControlChannel) -> Verdict | None:
    """Run a check. Returns the verdict on rank 0, None on the others.

    The check runs in a thread of its own, so that a rank on which it hangs can still report that.
    """
    team = Team()
    threading.Thread(target=_perform, args=(check, job, team), name=check.name, daemon=True).start()
    within = check.within * max(1.0, job.size / _LARGE)
    deadline = time.monotonic() + within
    step = 0
    values: list[Any] = []
    is_judging = False  # rank 0 has all it needs; the others are done
    while True:
        try:
            what, value = team.outbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            what, value = "problem", f"not done after {within:g} s"
        if what == "verdict":
            assert isinstance(value, Verdict)
            return value
        if is_judging:
            values[0] = [what, value]
        else:
            patience = max(0.0, deadline - time.monotonic()) + _SKEW
            values = channel.gather(f"{check.name}/{step}", [what, value], patience, to_all=what == "share")
        is_judging = job.rank == 0 and what == "gather"
        problems = _problems(values, job.topology)
        if job.rank == 0 and problems:
            team.inbox.put(None)
            return fail(f"the check itself failed: {problems}", "look at those ranks; the other checks may say why")
        if job.rank != 0 and (what != "share" or problems or not values):
            team.inbox.put(None)
            return None
        team.inbox.put([value for _, value in values])
        step += 1


def _perform(check: Check, job: Job, team: Team) -> None:
    try:
        verdict = check.function(job, team)
    except _Ended:
        return
    except BaseException as error:  # on broken machines anything may be raised; it becomes one line of the report
        text = " ".join(str(error).split())[:300]
        team.outbox.put(("problem", f"{type(error).__name__}: {text}" if text else type(error).__name__))
    else:
        team.outbox.put(("verdict", verdict))


def _problems(values: Sequence[Any], topology: Topology) -> str:
    """Return the problems of the ranks in one line, or an empty string."""
    by_text: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is None:
            by_text.setdefault("no answer", []).append(rank)
        elif value[0] == "problem":
            by_text.setdefault(value[1], []).append(rank)
    return "; ".join(f"{where(ranks, topology)}: {text}" for text, ranks in by_text.items())


def where(ranks: Sequence[int], topology: Topology) -> str:
    """``ranks 2-3 (node2)``."""
    hosts = ", ".join(dict.fromkeys(topology.hosts[topology.host_index(rank)].name for rank in ranks))
    return f"{ranks_text(list(ranks))} ({hosts})"


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def grouped(values: Sequence[Any], topology: Topology) -> str:
    """Group ranks by their values: ``2.14.0 on ranks 0-1 (node1); 2.13.0 on rank 2 (node2)``."""
    by_value: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {where(ranks, topology)}" for value, ranks in by_value.items())
