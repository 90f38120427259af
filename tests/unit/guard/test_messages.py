"""What the guards tell each other goes through JSON, and what is none of their messages does no harm."""

from __future__ import annotations

import json

import pytest

from runner.guard.hang.collectives import Call
from runner.guard.link import messages
from runner.guard.link.messages import Message, ToHub, packed, unpacked
from runner.guard.report.failure import Failure

FAILURE = Failure(rank=3, host="b", exit_code=None, what="killed", step=7, time=0.5, attempt=1)
CALL = Call(group="0", ranks=[0, 2], number=4, name="all_reduce", is_over=False)
MESSAGES: list[Message] = [
    messages.Alive(),
    messages.Joined(),
    messages.Left(),
    messages.Gone("its host's agent has ended"),
    messages.Apart("a:1: timed out"),
    messages.HostName(None),
    messages.Failed(attempt=1, again=True, failure=FAILURE),
    messages.Failed(attempt=0, again=False, failure=None),
    messages.Ends(2, "no room"),
    messages.Returned(0, ""),
    messages.Done(1),
    messages.Busy(1, is_busy=True),
    messages.Patient(1, is_needed=False),
    messages.Reason("stopped by a signal", is_stopped=True),
    messages.Reason("no progress", option="--collective-timeout"),
    messages.Show(1),
    messages.Stacks(1, "Thread", [CALL]),
    messages.Stacks(0, None, []),
    messages.Hung(FAILURE),
]


def test_all_messages_go_through_json() -> None:
    assert {type(message) for message in MESSAGES} == {*Message.__subclasses__(), *ToHub.__subclasses__()} - {ToHub}
    for message in MESSAGES:
        assert unpacked(json.loads(json.dumps(packed(3, message)))) == (3, message)


@pytest.mark.parametrize(
    "sent",
    [None, [1, "Other", {}], [1, "Done", {}], [1, "Done", {"attempt": 1, "rank": 2}], [1, "Hung", {"failure": {}}]],
)
def test_other_content_counts_as_a_sign_of_life(sent: object) -> None:
    assert unpacked(sent) == (0, messages.Alive())
