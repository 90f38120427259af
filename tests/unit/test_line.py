"""The line between the guards: what one tells, all others receive; who leaves or is gone."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from runner.guard.line import APART, GONE, Address, Line, Message
from runner.rendezvous.endpoint import listen, port_of
from tests.launching import SCRIPTS
from tests.polling import poll_until

KEY = "00" * 32


class End:
    """A guard's end of the line, and the pipe by which it wakes its guard."""

    def __init__(self, rank: int, listener: socket.socket | None, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.pipe, wake = os.pipe()
        self.line = Line(Address(host=host, port=port, key=KEY, rank=rank, size=3), listener, wake)

    def receive(self, is_it: Callable[[Message], bool]) -> Message:
        """Wait for a message, as the guard does: asleep until the pipe has a byte."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not select.select([self.pipe], [], [], 1)[0]:
                continue
            os.read(self.pipe, 100)
            for message in self.line.received():
                if is_it(message):
                    return message
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
    ends[rank].line.tell({"failed": 7})
    for other in ends:
        if other is not ends[rank]:
            assert other.receive(lambda message: "failed" in message) == {"failed": 7, "rank": rank}
    assert ends[rank].line.received() == []


def test_a_message_to_the_middle_goes_no_further(ends: list[End]) -> None:
    ends[1].line.tell({"stacks": "x", "to_middle": True})
    ends[1].line.tell({"failed": 1})
    assert ends[0].receive(lambda message: "stacks" in message)["rank"] == 1
    assert ends[2].receive(lambda _: True) == {"failed": 1, "rank": 1}


def test_who_leaves_is_not_missed_and_who_is_gone_is(ends: list[End]) -> None:
    ends[1].line.close()
    command = [sys.executable, str(SCRIPTS / "other_guard.py"), str(ends[1].port), KEY, "1"]
    with subprocess.Popen(command) as process:
        assert ends[2].receive(lambda message: "failed" in message)["rank"] == 1
        process.kill()
    for end in (ends[0], ends[2]):
        message = end.receive(lambda message: GONE in message)
        assert (message["rank"], message[GONE]) == (1, "its guard has ended, with its host or by a signal")


def test_the_middle_that_leaves_is_not_missed(ends: list[End]) -> None:
    ends[1].line.tell({"here": True})
    assert ends[0].receive(lambda message: "here" in message)
    ends[0].line.close()
    poll_until(lambda: not ends[1].line.is_open and not ends[2].line.is_open, 20, "the line is closed")
    assert [message for end in ends for message in end.line.received() if GONE in message] == []


def test_a_guard_that_does_not_reach_rank_0s_says_so() -> None:
    end = End(1, None, 1, host="no-such-host.invalid")
    assert end.receive(lambda message: APART in message)[APART].startswith("no-such-host.invalid:1: ")
    assert not end.line.is_open
