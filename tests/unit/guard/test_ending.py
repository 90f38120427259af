"""A guard decides again with what it hears, says its word once, and waits no longer than it has to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runner.guard import rank
from runner.guard.link.messages import Done
from runner.guard.link.peers import Restarts
from runner.guard.rank import Ending
from runner.guard.settings import Words
from tests.unit.guard.test_decision import END

WORDS = Words(
    label="rank 0", size=2, no_rendezvous=lambda code: f"not met ({code})", is_reporting=True, how_to_resume=""
)


class Scene:
    """Rank 0 of 2 after its worker's end: what its guard would see, and what it does. ``news``: what it hears, in turn."""

    def __init__(self, *news: tuple[str, Any], restarts: int = 0) -> None:
        self.news, self.now = list(news), 0.0
        self.said: list[str] = []
        self.told: list[object] = []
        self.told_first: list[object] = []  # before all waits
        self.waits: list[float] = []
        self.attempt = SimpleNamespace(
            number=0,
            follows=False,
            hang=SimpleNamespace(is_reported=False, waits=lambda: False),
            others=SimpleNamespace(have_left_before=lambda rank: False),
            worker=SimpleNamespace(rendezvous_at=1.0, look_at_group=lambda: None),
        )
        self.restarts = Restarts(restarts, rank=0, size=2)
        self.signals = SimpleNamespace(has_ended_it=False, is_ended_by_launcher=False)
        self.events = SimpleNamespace(is_orphan=False, wait=self.wait, wait_for_messages=self.wait)
        self.peers = SimpleNamespace(are_reached=True, present={0, 1}, known=lambda _: None, tell=self.told.append)
        self.console = SimpleNamespace(said="", say=self.say)
        self.files, self.words = None, WORDS
        self.take_events = self.receive_from_others
        self.say_for_another = self.look_for_a_hang = lambda: None

    def say(self, text: str, *, fix: str) -> None:
        self.said.append(text)
        self.console.said = text

    def wait(self, within: float) -> None:
        self.told_first = self.told_first if self.waits else [*self.told]
        self.waits.append(within)
        self.now += within

    def receive_from_others(self) -> None:
        if self.news:
            what, value = self.news.pop(0)
            if what == "done":
                self.restarts.done.add(value)
            elif what == "hang":
                self.attempt.hang.is_reported = value
            elif what == "follows":
                self.attempt.follows = value


def concluded(scene: Scene, monkeypatch: pytest.MonkeyPatch, **end: Any) -> int:
    monkeypatch.setattr(rank.time, "monotonic", lambda: scene.now)
    watch: Any = scene
    decision = Ending(watch, replace(END, **end)).conclude()
    assert decision.waits_for is None
    return decision.code


def test_who_leaves_without_a_word_is_named_once_and_after_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    assert concluded(scene, monkeypatch, status=3 << 8) == 3
    assert len(scene.said) == 1
    assert "ended with code 3" in scene.said[0]
    assert scene.waits == [0.5]
    caused = Scene(("follows", True))
    assert concluded(caused, monkeypatch, status=3 << 8) == 3
    assert (caused.said, len(caused.waits)) == ([], 1)


def test_it_stays_until_all_have_ended_well_and_says_once_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(("", None), ("", None), ("done", 1), restarts=1)
    assert concluded(scene, monkeypatch, status=0, has_said=True) == 0
    assert scene.told_first == scene.told == [Done(0)]  # the others wait for it, too
    assert len(scene.waits) == 3


def test_the_last_one_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(restarts=1)
    scene.restarts.done.add(1)
    assert concluded(scene, monkeypatch, status=0, has_said=True) == 0
    assert (scene.told, scene.waits) == ([Done(0)], [])


def test_a_hang_that_is_heard_of_as_nobody_is_waited_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(("done", 1), ("hang", True), restarts=1)
    assert concluded(scene, monkeypatch, status=0, has_said=True) == 70
