"""A step's time, from what it consists of: computing, waiting in a pipeline, and the part of its exchanges that is not hidden.

    step = computing · (1 + idle ÷ (1 - idle)) + exchange - what is hidden

Of an exchange of gradients or parameters a share is hidden behind computing, and never more than the backward pass, two thirds of it.
What tensor and pipeline parallelism send is not hidden. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.tools.costs.exchanges import NEVER_HIDDEN, Exchange, Links

_BACKWARD = 2 / 3  # of computing: a backward pass takes two forward passes


class Expected(NamedTuple):
    """A figure, and what it is where all is as good, and as bad, as may be expected."""

    low: float
    value: float
    high: float


def about(value: float, share: float) -> Expected:
    """Between the value divided and multiplied by 1 + share."""
    return Expected(value / (1 + share), value, value * (1 + share))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a step's time follows from.

    Attributes:
        computing: seconds of the rank that computes longest. What follows from steps is less where exchanges are slow.
        idle: share of the step in which ranks of a pipeline wait for others.
        exchanges: of the rank that sends most.
        links: how fast each exchange is.
        slower: by what the seconds that the links say are multiplied: 1.0, and between which factors that is expected.
        hidden: share of an exchange that computing hides.
        error: relative, by which a prediction of the same kind was off where it was checked.
    """

    computing: Expected
    idle: float
    exchanges: Sequence[Exchange]
    links: Links
    slower: Expected
    hidden: Expected
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds of a step, between which they are expected, and what they consist of.

    Attributes:
        within, between: exchanges within a host and between hosts, as far as they are not hidden.
        exchange: of both, where they are not known apart.
    """

    seconds: float
    low: float
    high: float
    computing: float
    idle: float = 0.0
    within: float = 0.0
    between: float = 0.0
    exchange: float = 0.0

    @property
    def efficiency(self) -> float:
        """The share of the step in which ranks compute."""
        return self.computing / self.seconds


def predict(facts: Facts) -> Prediction:
    """Put the parts together.

    Raises:
        KeyError: the links of a collective are not known.
    """
    within, across = (
        _Seconds.of(facts, [one for one in facts.exchanges if (one.group.hosts > 1) == is_across])
        for is_across in (False, True)
    )
    whole = _Seconds(within.hideable + across.hideable, within.others + across.others)

    ends = [
        (computing, slower, whole.left(computing, slower, hidden))
        for computing, (slower, hidden) in zip(facts.computing, _ends(facts), strict=True)
    ]
    low, seconds, high = (
        computing / (1 - facts.idle) + slower * whole.exposed(left) for computing, slower, left in ends
    )
    _, slower, left = ends[1]
    computing = facts.computing.value
    return Prediction(
        seconds=seconds,
        low=min(low, seconds, high, seconds / (1 + facts.error)),
        high=max(low, seconds, high, seconds * (1 + facts.error)),
        computing=computing,
        idle=computing * facts.idle / (1 - facts.idle),
        within=slower * within.exposed(left),
        between=slower * across.exposed(left),
    )


def computing_of(seconds: float, facts: Facts) -> Expected:
    """How long a rank computes in a step that takes so long, all else being as the facts say: the inverse of ``predict``.

    0.0 where the exchanges alone take longer.
    """
    exchange, stretch = _Seconds.of(facts, facts.exchanges), 1 / (1 - facts.idle)

    def computing(slower: float, share: float) -> float:
        hidden = share * slower * exchange.hideable
        found = (seconds - slower * exchange.total + hidden) / stretch
        if hidden > _BACKWARD * found:
            found = (seconds - slower * exchange.total) / (stretch - _BACKWARD)
        return max(0.0, found)

    return Expected(*(computing(slower, share) for slower, share in _ends(facts)))


def _ends(facts: Facts) -> list[tuple[float, float]]:
    """How slow exchanges are, and what share of them is hidden: at best, as expected, and at worst."""
    return list(zip(facts.slower, reversed(facts.hidden), strict=True))


class _Seconds(NamedTuple):
    """Of exchanges with nothing else running: of those that may be hidden, and of the others."""

    hideable: float
    others: float

    @classmethod
    def of(cls, facts: Facts, exchanges: Sequence[Exchange]) -> _Seconds:
        times = [(one.purpose in NEVER_HIDDEN, facts.links.seconds(one)) for one in exchanges]
        return cls(sum(time for is_not, time in times if not is_not), sum(time for is_not, time in times if is_not))

    @property
    def total(self) -> float:
        return self.hideable + self.others

    def left(self, computing: float, slower: float, hidden: float) -> float:
        """The share of what may be hidden that is not, beside so much computing, where all takes ``slower`` times as long."""
        most = _BACKWARD * computing / (slower * self.hideable) if self.hideable else 1.0
        return 1 - min(hidden, most)

    def exposed(self, left: float) -> float:
        """What is not hidden, if such a share is left."""
        return self.others + left * self.hideable
