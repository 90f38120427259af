"""Verdicts on the ranks of a job by their states: failed, missing, stuck or slow; and the job as a whole."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.base.quantities import duration_text
from runner.guard.report.rank_state import SILENT_INTERVALS, SILENT_SECONDS, RankState

# The statuses, in the order in which ranks are shown. The first ones need attention.
STATUSES = ("failed", "missing", "stuck", "slow", "running", "ended")
TROUBLE = STATUSES[:4]
_STANDING = {"failed", "missing", "stuck"}  # a job with such a rank does not continue

# A rank is stuck without progress for so many seconds or median step times,
_STUCK_SECONDS = 30.0
_STUCK_STEPS = 20
# and slow if its step takes so many times the median.
_SLOW = 1.3
# The ranks of most trainings wait for one another in each step: then its own part counts, if it makes so large a share of a step.
_SLOW_ITSELF, _SHARE = 1.5, 0.1

# A file that is older than this before the newest rank's start is of an earlier job in the same folder.
_START_SPREAD = 60.0


@dataclass(frozen=True, kw_only=True)
class RankVerdict:
    """The verdict on one rank."""

    status: str  # one of STATUSES
    state: RankState  # in which all is unknown if it has written none
    why: str = ""  # what is wrong
    idle: float | None = None  # seconds since its last progress
    urgency: float = 0.0  # within a status, larger ones are shown first

    @property
    def rank(self) -> int:
        return self.state.rank


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A job as a whole. None: unknown."""

    size: int
    hosts: list[str]
    seconds: float | None  # since the first rank has started, until now or until the last has ended
    step: int | None  # of the rank that is behind the others
    steps: int | None
    epoch: int | None
    epochs: int | None
    loss: float | None
    steps_per_second: float | None  # None also where a rank has failed, is missing or stuck, as below
    seconds_left: float | None
    counts: dict[str, int]  # ranks by status


def judge(states: Iterable[RankState], now: float) -> list[RankVerdict]:
    """Judge each rank of a job. Return the ranks that need attention first.

    Args:
        now: Unix time. The hosts' clocks may differ from it, and from each other, by some seconds.
    """
    by_rank = {state.rank: state for state in _of_this_job(list(states))}
    ranks = [by_rank.get(rank, RankState(rank=rank)) for rank in range(_size(by_rank.values()))]
    running = [state for state in ranks if not (_ended(state) or _missing(state, now))]
    median, own = _median_step(running), _median([state.own_seconds for state in running])
    verdicts = [
        _ended(state)
        or _missing(state, now)
        or _stuck(state, median)
        or _slow(state, median, own)
        or RankVerdict(status="running", state=state, why=state.what or "", idle=_idle(state))
        for state in ranks
    ]
    return sorted(verdicts, key=lambda one: (STATUSES.index(one.status), -one.urgency, one.rank))


def overview(verdicts: Sequence[RankVerdict], now: float) -> Overview:
    """Return the job as a whole, from the verdicts on all its ranks."""
    verdicts = sorted(verdicts, key=lambda one: one.rank)
    states = [one.state for one in verdicts]
    living = [one.state for one in verdicts if one.status in ("stuck", "slow", "running")]
    present = [one.state for one in verdicts if one.status != "missing"] or states
    behind = min(present, key=lambda state: math.inf if state.step is None else state.step, default=RankState(rank=0))
    counts = Counter(one.status for one in verdicts)
    median = None if counts.keys() & _STANDING else _median_step(living)
    left = None
    if median and behind.step is not None and behind.steps is not None:
        left = max(0, behind.steps - behind.step) * median
    started = [state.started for state in states if state.started is not None]
    written = [state.time for state in states if state.time is not None]
    until = now if living or not written else max(written)
    return Overview(
        size=len(verdicts),
        hosts=list(dict.fromkeys(state.host for state in states if state.host)),
        seconds=max(0.0, until - min(started)) if started else None,
        step=behind.step,
        steps=behind.steps,
        epoch=behind.epoch,
        epochs=behind.epochs,
        loss=next((state.loss for state in present if state.loss is not None), None),
        steps_per_second=1 / median if median else None,
        seconds_left=left,
        counts={status: counts[status] for status in STATUSES if counts[status]},
    )


def facts(verdicts: Sequence[RankVerdict], now: float) -> dict[str, Any]:
    """Return the job and its ranks for JSON, which has no NaN and no infinity: they become None."""

    def finite(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }

    ranks = [finite({"status": one.status, "why": one.why, "idle": one.idle} | asdict(one.state)) for one in verdicts]
    return {"time": now} | finite(asdict(overview(verdicts, now))) | {"ranks": ranks}


def _of_this_job(states: list[RankState]) -> list[RankState]:
    # (A clock that was set back has written a time before the start.)
    starts = [
        min(state.started, state.started if state.time is None else state.time)
        for state in states
        if state.started is not None
    ]
    newest = max(starts, default=-math.inf)
    return [state for state in states if state.time is None or state.time >= newest - _START_SPREAD]


def _size(states: Iterable[RankState]) -> int:
    """Return the number of ranks by the newest state, or as many as have left a state."""
    known = max((state for state in states if state.size), key=lambda state: state.time or 0.0, default=None)
    return known.size if known and known.size else max((state.rank for state in states), default=-1) + 1


def _ended(state: RankState) -> RankVerdict | None:
    if not state.has_ended:
        return None
    if not (state.exit_code or (state.what and state.exit_code is None)):
        return RankVerdict(status="ended", state=state)
    code = "" if state.exit_code is None else f"exit code {state.exit_code}"
    why = f"{state.what} ({code})" if state.what and code else state.what or code
    # The first one that failed may be the others' cause.
    return RankVerdict(status="failed", state=state, why=why, urgency=-(state.time or 0.0))


def _missing(state: RankState, now: float) -> RankVerdict | None:
    if state.time is None:
        return RankVerdict(status="missing", state=state, why=state.what or "it has not written its state")
    silent = now - state.time
    if silent <= max(SILENT_SECONDS, SILENT_INTERVALS * (state.interval or 0.0)):
        return None
    idle = None if state.progress is None else max(silent, now - state.progress)
    why = f"it has not written its state for {duration_text(silent)}{_reported(state)}"
    return RankVerdict(status="missing", state=state, why=why, idle=idle)


def _stuck(state: RankState, median: float | None) -> RankVerdict | None:
    idle = _idle(state)
    if idle is None or idle <= max(_STUCK_SECONDS, _STUCK_STEPS * (median or 0.0)):
        return None
    where = "".join(
        [
            ", " + state.phase if state.phase else "",
            "" if state.step is None else f", step {state.step}",
            _reported(state),
        ]
    )
    # The others may be waiting for the one that is behind.
    urgency = -math.inf if state.step is None else -state.step
    return RankVerdict(
        status="stuck", state=state, why=f"no progress for {duration_text(idle)}{where}", idle=idle, urgency=urgency
    )


def _slow(state: RankState, median: float | None, own: float | None) -> RankVerdict | None:
    """Return a verdict on a slow rank: in its steps or, if ranks wait for one another, in its own part of a step."""
    ratio = state.step_seconds / median if state.step_seconds and median else 0.0
    if ratio > _SLOW:
        why = f"a step takes {ratio:.1f} times the median{_reported(state)}"
        return RankVerdict(status="slow", state=state, why=why, idle=_idle(state), urgency=ratio)
    ratio = state.own_seconds / own if state.own_seconds and own else 0.0
    if ratio > _SLOW_ITSELF and median and (state.own_seconds or 0.0) - (own or 0.0) > _SHARE * median:
        why = f"it takes {ratio:.1f} times the median before it exchanges anything{_reported(state)}"
        return RankVerdict(status="slow", state=state, why=why, idle=_idle(state), urgency=ratio)
    return None


def _reported(state: RankState) -> str:
    return f": {state.what}" if state.what else ""


def _idle(state: RankState) -> float | None:
    """Return the seconds between a rank's last progress and its last state, both by its own clock."""
    if state.progress is None or state.time is None:
        return None
    return max(0.0, state.time - state.progress)


def _median_step(states: Iterable[RankState]) -> float | None:
    """Return the median of the ranks' step times: of two the shorter one, so that the other can be slow."""
    return _median([state.step_seconds for state in states])


def _median(seconds: Iterable[float | None]) -> float | None:
    known = [one for one in seconds if one and one > 0]
    return statistics.median_low(known) if known else None
