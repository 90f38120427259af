"""The ranks' conversation after they have met, over real sockets, and checks that some rank spoils."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from runner.base.errors import RendezvousError
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import Host, Topology
from runner.rendezvous.transport.control_channel import ControlChannel
from runner.rendezvous.transport.endpoint import Endpoint, listen
from runner.tools.doctor.examine import Check, Team, Verdict, examine, ok


def together(size: int, work: Callable[[ControlChannel], Any]) -> list[Any]:
    """What each rank of a job makes of it, or the error that it raises."""
    listener = listen(loopback=True)
    host, port = listener.getsockname()[:2]

    def rank(number: int) -> Any:
        own = listener if number == 0 else None
        endpoint = Endpoint(host=host, port=port, interface="lo", way="file", key=b"key", listener=own)
        try:
            with ControlChannel(number, size, endpoint, "token") as channel:
                return work(channel)
        except RendezvousError as error:
            return error

    with listener, ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


@pytest.mark.parametrize("size", [1, 2, 9])
def test_all_hear_all(size: int) -> None:
    def work(channel: ControlChannel) -> list[Any]:
        return [channel.gather(str(n), [n, channel.rank], 10.0, to_all=True) for n in range(20)]

    assert together(size, work) == [[[[n, rank] for rank in range(size)] for n in range(20)]] * size


def test_others_than_rank_0_need_not_be_told() -> None:
    assert together(3, lambda channel: channel.gather("a", channel.rank, 10.0)) == [[0, 1, 2], [], []]


def test_a_rank_that_has_gone_is_waited_for_once() -> None:
    def work(channel: ControlChannel) -> Any:
        if channel.rank == 2:
            return None
        return [channel.gather(topic, channel.rank, 20.0, to_all=True) for topic in "ab"]

    start = time.monotonic()
    assert together(3, work) == [[[0, 1, None]] * 2] * 2 + [None]
    assert time.monotonic() - start < 15  # not the patience of 20 s


def test_a_rank_that_is_late_comes_back() -> None:
    """It missed a topic; what it says of that one is not taken for the next."""
    late = threading.Event()

    def work(channel: ControlChannel) -> Any:
        if channel.rank == 2:
            late.wait(20)
        first = channel.gather("a", f"a{channel.rank}", 0.5, to_all=True)
        if channel.rank == 0:
            late.set()
            time.sleep(0.5)
        return [first, channel.gather("b", f"b{channel.rank}", 10.0, to_all=True)]

    found = together(3, work)
    assert found[0][0] == ["a0", "a1", None]
    assert found[0][1][:2] == ["b0", "b1"]
    assert found[2][0] == ["a0", "a1", None]  # rank 2 is told what the others were


def test_rank_0_gone_is_an_error() -> None:
    _, error = together(2, lambda channel: channel.gather("a", 1, 5.0) if channel.rank else None)
    assert "rank 0 answers no more" in str(error)


def examined(size: int, function: Callable[[Any, Team], Verdict], within: float = 5.0) -> list[Verdict | None]:
    topology = Topology((Host("here", tuple(range(size))),), Records.of([RankRecord()] * size))

    def work(channel: ControlChannel) -> Verdict | None:
        job: Any = SimpleNamespace(rank=channel.rank, size=size, topology=topology)
        return examine(Check(name="trial", function=function, within=within), job, channel)

    return together(size, work)


def test_rank_0_judges_what_all_have_found() -> None:
    def check(job: Any, team: Team) -> Verdict:
        shared = team.share(job.rank * 10)
        return ok(str(team.gather(shared[(job.rank + 1) % job.size])))

    assert examined(3, check) == [ok("[10, 20, 0]"), None, None]


@pytest.mark.parametrize("culprit", [0, 2])
@pytest.mark.parametrize("moment", ["before sharing", "after sharing", "in judging"])
def test_a_check_that_raises_is_a_verdict(culprit: int, moment: str) -> None:
    def check(job: Any, team: Team) -> Verdict:
        if job.rank == culprit and moment == "before sharing":
            raise OSError("no such device")
        team.share(1)
        if job.rank == culprit and moment == "after sharing":
            raise OSError("no such device")
        team.gather(1)
        if moment == "in judging":
            raise OSError("no such device")
        return ok("")

    verdict, *others = examined(3, check)
    assert others == [None, None]
    assert verdict is not None
    blamed = 0 if moment == "in judging" else culprit
    assert verdict.status == "fail"
    assert verdict.detail == f"the check itself failed: rank {blamed} (here): OSError: no such device"


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_check_that_hangs_is_a_verdict(culprit: int) -> None:
    end = threading.Event()

    def check(job: Any, team: Team) -> Verdict:
        if job.rank == culprit:
            end.wait(30)
        team.gather(1)
        return ok("")

    verdict, other = examined(2, check, within=0.5)
    end.set()
    assert other is None
    assert verdict is not None
    assert f"rank {culprit} (here): not done after 0.5 s" in verdict.detail
