"""The step at which a training notices a signal, and the time before its limit at which it saves."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from runner.training.preemption import Preemption
from tests.unit.guard.test_hang import Clock

ALONE: Any = SimpleNamespace(size=1, is_main=True)  # the run of one rank


def checkpoints() -> Any:
    """Checkpoints that have taken no time and are never due."""
    return SimpleNamespace(longest_seconds=0.0, spent_seconds=0.0, time_is_due=lambda: False)


@pytest.mark.parametrize(("steps", "seconds"), [(3, 1.0), (1000, 0.001)])
def test_signals_are_noticed_from_the_first_steps_on_and_where_calls_become_slow(
    steps: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after fast steps the batches of an evaluation, or the other way round."""
    clock, preemption = Clock(monkeypatch), Preemption(ALONE, checkpoints(), None)
    for _ in range(steps):
        clock.now += seconds
        assert not preemption.ends()
    preemption.agree(now=True)
    preemption.receive(signal.SIGUSR1, None)
    clock.now += 1.0
    assert [preemption.ends() for _ in range(2)] == [True] * 2  # from then on
    assert preemption.reason == "SIGUSR1"


@pytest.mark.parametrize(("least", "until"), [(60, 940), (400, 600)])
def test_before_the_time_limit_there_is_time_for_a_step_and_a_checkpoint_as_long_as_the_longest(
    least: float, until: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saves = Clock(monkeypatch), checkpoints()
    began = clock.now

    def steps(preemption: Preemption, seconds: float) -> float:
        """Make steps until it is to end; when that is."""
        while not preemption.reason:
            clock.now += seconds
            preemption.agree(now=True)
        return clock.now - began

    preemption = Preemption(ALONE, saves, 1000.0, least)
    clock.now += 300  # the first step compiles
    preemption.agree(now=True)
    assert until <= steps(preemption, 10.0) <= until + 10

    clock.now = began
    preemption = Preemption(ALONE, saves, 1000.0, least)
    preemption.agree(now=True)
    clock.now += 400  # a checkpoint, written in the background for the most part
    saves.longest_seconds, saves.spent_seconds = 300.0, 400.0
    assert min(until, 628) <= steps(preemption, 10.0) <= min(until, 628) + 10  # 1000 - 1.2 (300 + 10)
