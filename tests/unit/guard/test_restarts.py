"""When a job that may be started again in place has ended well."""

from __future__ import annotations

from runner.guard.link.peers import Restarts


def test_it_has_ended_when_all_ranks_have() -> None:
    restarts = Restarts(2, rank=0, size=3)
    assert restarts.finish()
    assert not restarts.finish()
    restarts.done.add(2)
    assert restarts.unfinished() == {1}
    restarts.done.add(1)
    assert not restarts.unfinished()


def test_a_rank_whose_guard_cannot_tell_is_not_waited_for() -> None:
    """Behind a firewall: its own end would never be known, and the job never end."""
    restarts = Restarts(2, rank=0, size=3)
    restarts.finish()
    assert restarts.unfinished({0, 1}) == {1}
    restarts.done.add(1)
    assert restarts.unfinished() == {2}
    assert not restarts.unfinished({0, 1})
