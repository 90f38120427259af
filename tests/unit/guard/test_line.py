"""The line between the guards: what one tells, all others receive; who leaves or is gone."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import make_dataclass
from typing import TypeVar

import pytest

from runner.guard.line import Address, Line
from runner.guard.messages import Apart, Failed, Gone, Show, Stacks
from runner.rendezvous.transport.endpoint import listen, port_of
from tests.launching import path_of
from tests.polling import LIMIT, poll_until

KEY = "00" * 32
FAILED = Failed(attempt=0, again=False, failure=None)
Kind = TypeVar("Kind")


class End:
    """A guard's end of the line, and the pipe by which it wakes its guard."""

    def __init__(self, rank: int, listener: socket.socket | None, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.pipe, wake = os.pipe()
        self.line = Line(Address(host=host, port=port, key=KEY, rank=rank, size=3), listener, wake)

    def receive(self, kind: type[Kind]) -> tuple[int, Kind]:
        """Wait for a message of this kind, as the guard does: asleep until the pipe has a byte."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not select.select([self.pipe], [], [], 1)[0]:
                continue
            os.read(self.pipe, 100)
            for rank, message in self.line.received():
                if isinstance(message, kind):
                    return rank, message
        raise AssertionError("it was not received")


@pytest.fixture
def ends() -> Iterator[list[End]]:
    """Those of three ranks."""
    listener = listen(loopback=True)
    port = port_of(listener)
    made = [End(rank, listener if rank == 0 else None, port) for rank in range(3)]
    yield made
    for end in reversed(made):
        end.line.close()
    listener.close()


@pytest.mark.parametrize("rank", range(3))
def test_what_one_tells_all_others_receive(rank: int, ends: list[End]) -> None:
    ends[rank].line.tell(FAILED)
    for other in ends:
        if other is not ends[rank]:
            assert other.receive(Failed) == (rank, FAILED)
    assert ends[rank].line.received() == []


def test_a_message_to_the_middle_goes_no_further(ends: list[End]) -> None:
    ends[1].line.tell(Stacks(0, "x", []))
    ends[1].line.tell(FAILED)
    assert ends[0].receive(Stacks) == (1, Stacks(0, "x", []))
    assert ends[2].receive(object) == (1, FAILED)


def test_a_message_that_nobody_knows_is_left_out(ends: list[End]) -> None:
    """As one of another version, which doctor lets take part."""
    for rank in (1, 0):
        ends[rank].line.tell(make_dataclass("Unknown", [])())
        ends[rank].line.tell(FAILED)
        for other in ends:
            if other is not ends[rank]:
                assert other.receive(object) == (rank, FAILED)


def test_who_leaves_is_not_missed_and_who_is_gone_is(ends: list[End]) -> None:
    ends[1].line.close()
    command = [sys.executable, path_of("other_guard"), str(ends[1].port), KEY, "1"]
    with subprocess.Popen(command) as process:
        assert ends[2].receive(Failed)[0] == 1
        process.kill()
    for end in (ends[0], ends[2]):
        assert end.receive(Gone) == (1, Gone("its guard has ended, with its host or by a signal"))


def test_the_middle_that_leaves_is_not_missed(ends: list[End]) -> None:
    for end in ends[1:]:
        end.line.tell(Show(0))
        assert ends[0].receive(Show)
    ends[0].line.close()
    poll_until(lambda: not ends[1].line.is_open and not ends[2].line.is_open, LIMIT, "the line is closed")
    assert [told for end in ends for told in end.line.received() if isinstance(told[1], Gone)] == []


def test_a_guard_that_does_not_reach_rank_0s_says_so() -> None:
    end = End(1, None, 1, host="no-such-host.invalid")
    assert end.receive(Apart)[1].why.startswith("no-such-host.invalid:1: ")
    assert not end.line.is_open
