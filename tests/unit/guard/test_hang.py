"""Where each rank is, from the stacks of a job that hangs; when a worker counts as hung; how soon a signal is received."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.guard.hang import stacks
from runner.guard.hang.collectives import Answer, Call
from runner.guard.hang.hang import Hang, Patience
from runner.guard.hang.stacks import Inside
from runner.guard.link.messages import Reason
from runner.guard.report.board import Board
from runner.guard.settings import Watched

OWN = Path(stacks.__file__).parents[2]  # the runner's folder

SLEEPING = f"""Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007e (most recent call first):
  File "/home/me/train.py", line 14 in load
  File "/home/me/train.py", line 30 in <module>
  File "{OWN}/starting/dispatch.py", line 77 in _run_script
"""
WAITING = f"""Current thread 0x00007e (most recent call first):
  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 3913 in all_reduce
  File "/opt/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 31 in <module>
  File "{OWN}/starting/dispatch.py", line 77 in _run_script
"""

SLOW = Reason("no progress for 30 s, after step 7")


def patience_of(board: Board, hang_after: float, requests: Any = None, **limits: float) -> Patience:
    """With this process, as a worker that trains."""
    watched = Watched(rendezvous_timeout=60.0, hang_after=hang_after, trains=True, **cast(Any, limits))
    return Patience(os.getpid, board, watched, requests)


def hang_of(found: dict[int, str | None], *reasons: Reason, rank: int = 0) -> Hang:
    """A hang of ranks with these stacks. The reasons are those of a rank and of the ranks after it."""
    hang = Hang(lambda: pytest.fail("a worker is looked at"))
    hang.stacks, hang.reasons = found, dict(enumerate(reasons, rank))
    return hang


def test_the_rank_that_others_wait_for_is_named() -> None:
    hang = hang_of({0: WAITING, 1: SLEEPING, 2: WAITING, 3: WAITING}, SLOW, rank=2)
    lines = hang.report(range(4), {0: "a", 1: "b", 2: "b"}).splitlines()
    assert lines[0] == (
        "no progress for 30 s, after step 7: rank 1 on host b in load (train.py:14); ranks 0, 2-3 waiting in all_reduce, "
        "called in <module> (train.py:31)"
    )
    assert hang.fix("go on with --resume") == "if it is only slow, allow more with --hang-timeout; go on with --resume"
    saves = hang_of({}, Reason("no progress for 1500 s, while it saves", option="--collective-timeout"))
    assert saves.fix("") == "if it is only slow, allow more with --collective-timeout"
    assert lines[1] == "ranks 0, 2-3, most recent call first:"
    assert lines[5:] == [
        "rank 1, most recent call first:",
        '  File "/home/me/train.py", line 14, in load',
        '  File "/home/me/train.py", line 30, in <module>',
    ]


AT_A_SYNC = f"""Current thread 0x00007e (most recent call first):
  File "{OWN}/training/step_metrics.py", line 71 in gather
  File "{OWN}/training/loop.py", line 152 in fit
  File "/home/me/train.py", line 31 in main
"""
IN_A_LAUNCH = f"""Current thread 0x00007e (most recent call first):
  File "/opt/site-packages/torch/nn/modules/linear.py", line 134 in forward
  File "{OWN}/training/loop.py", line 140 in fit
  File "/home/me/train.py", line 31 in main
"""


def test_on_a_gpu_ranks_that_wait_for_their_device_are_not_blamed() -> None:
    """A collective returns at once there: they wait at the next sync, or where no more kernels can be launched."""
    hang = hang_of({0: AT_A_SYNC, 1: SLEEPING, 2: AT_A_SYNC}, SLOW, SLOW, SLOW)
    first = hang.report(range(3)).splitlines()[0]
    assert first.endswith("rank 1 in load (train.py:14); ranks 0, 2 waiting in gather, called in main (train.py:31)")
    assert hang.late == [1]

    hang = hang_of({0: AT_A_SYNC, 1: SLEEPING, 2: IN_A_LAUNCH, 3: IN_A_LAUNCH}, SLOW, SLOW, SLOW, SLOW)
    ahead = Call(group="0", number=9, name="all_reduce", is_over=False)
    hang.calls = {0: [ahead], 1: [Call(group="0", number=8, name="all_reduce")], 2: [ahead], 3: []}
    first = hang.report(range(4)).splitlines()[0]
    assert "rank 1 in load (train.py:14); rank 3 in forward (linear.py:134); rank 0 waiting in gather" in first
    assert hang.late == [1, 3]  # the second has not said in which collective it is


def test_a_rank_that_is_stopped_is_named_wherever_it_is() -> None:
    hang = hang_of({0: WAITING, 1: WAITING}, SLOW, Reason("stopped by a signal", is_stopped=True))
    first = hang.report(range(2)).splitlines()[0]
    place = "in all_reduce, called in <module> (train.py:31)"
    assert first == f"stopped by a signal: rank 1 {place}; rank 0 waiting {place}"
    assert hang.fix("") == ""


def test_a_rank_whose_guard_does_not_answer_is_named_with_its_host() -> None:
    hang = hang_of({0: WAITING, 5: ""}, SLOW)
    text = hang.report(range(6), {0: "a", 1: "b", 2: "b", 3: "b", 4: "c"}, {0, 1, 3, 4})
    assert text.startswith(
        f"{SLOW.text}: ranks 1, 3 on host b have not answered; rank 2 on host b has ended; rank 4 on host c has not answered; "
        "rank 5 in a place that it does not show; rank 0 waiting in all_reduce"
    )
    assert hang.late == [1, 2, 3, 4]


class Clock:
    """Time that goes on by a test's will."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def watch(self, patience: Patience, seconds: int) -> list[Reason | None]:
        """What is found in each of so many seconds."""
        found = []
        for _ in range(seconds):
            self.now += 1
            found.append(patience.lost())
        return found


def test_progress_is_what_the_worker_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, board = Clock(monkeypatch), Board()
    patience = patience_of(board, 5.0, save_within=90.0)
    assert not any(clock.watch(patience, 60))  # before the training
    board.step(1, 9, 1, 1)
    assert not any(clock.watch(patience, 5))
    board.step(2, 9, 1, 1)
    assert not any(clock.watch(patience, 5))
    assert clock.watch(patience, 2)[-1] == Reason("no progress for 5 s, after step 2")
    board.enter("saving")  # may take longer
    assert not any(clock.watch(patience, 60))
    board.step(3, 9, 1, 1)
    clock.now += 3600  # the job was suspended
    assert patience.lost() is None


def test_what_comes_first_may_take_five_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, board = Clock(monkeypatch), Board()
    patience = patience_of(board, 5.0)
    with board.training():
        assert not any(clock.watch(patience, 25))
        assert clock.watch(patience, 2)[-1] == Reason("no progress for 25 s, before the first step")
        board.step(7, 9, 1, 1)  # it has gone on from a checkpoint
        assert clock.watch(patience, 7)[-1] == Reason("no progress for 5 s, after step 7")


@pytest.mark.parametrize(
    ("phase", "seconds", "option", "where"),
    [
        ("step hook", 25, "--hang-timeout", "in a hook"),
        ("epoch hook", 90, "--collective-timeout", "in a hook"),
        ("saving", 90, "--collective-timeout", "while it saves"),
    ],
)
def test_a_hook_and_a_checkpoint_are_phases_of_their_own(
    phase: str, seconds: int, option: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, board = Clock(monkeypatch), Board()
    patience, patient = (patience_of(board, after, save_within=90.0) for after in (5.0, 0.0))
    board.step(3, 9, 1, 1)
    with board.during(phase):
        assert not any(clock.watch(patience, seconds))
        slow = Reason(f"no progress for {seconds} s, after step 3, {where}", option=option)
        assert clock.watch(patience, 2)[-1] == slow
        assert patient.lost() is None
    assert not any(clock.watch(patience, 5))
    assert clock.watch(patience, 2)[-1] == Reason("no progress for 5 s, after step 3")


def test_micro_batches_are_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, board = Clock(monkeypatch), Board()
    patience = patience_of(board, 5.0)
    board.step(1, 9, 1, 1)
    board.step(2, 9, 1, 1)
    for _ in range(4):
        assert not any(clock.watch(patience, 4))
        board.go_on()
    board.step(3, 9, 1, 1)
    board.complete()
    assert board.read().step_seconds == 8.0  # the mean of 0 and 16


def test_who_waits_for_a_rank_that_is_busy_has_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a hook, for example, that has counted itself as such before."""
    clock, board = Clock(monkeypatch), Board()
    waits, works = (patience_of(board, 5.0) for _ in range(2))
    board.step(1, 9, 1, 1)
    assert not any(clock.watch(waits, 4))
    waits.others_are_busy = True
    assert not any(clock.watch(waits, 60))
    waits.others_are_busy = False
    assert not any(clock.watch(waits, 5))
    assert any(clock.watch(waits, 2))
    with board.during("step hook"):
        assert not any(clock.watch(works, 3))
        assert works.is_busy
        works.others_are_busy = True  # two that are busy do not wait for each other
        assert any(clock.watch(works, 25))
    clock.watch(works, 1)
    assert not works.is_busy


@pytest.mark.parametrize(
    ("is_recorded", "where"),
    [(True, "in torch.distributed, but in no collective"), (False, "in a call of torch.distributed")],
)
def test_before_the_training_a_call_of_torch_distributed_is_bounded_and_preparing_data_is_not(
    is_recorded: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.guard.hang.hang.IS_RECORDED", is_recorded)
    clock = Clock(monkeypatch)
    answers = [Answer([], inside=0)]
    requests: Any = SimpleNamespace(ask=lambda: None, answered=lambda: answers[-1])
    patience = patience_of(Board(), 60.0, in_collective=1500.0, requests=requests, in_call=60.0)
    assert not any(clock.watch(patience, 3000))
    assert patience.is_busy
    for call in range(1, 9):  # each takes a while, as process groups are made
        answers.append(Answer([], inside=call))
        assert not any(clock.watch(patience, 55))
        assert not patience.is_busy
    connecting = Reason(f"no progress for 60 s, {where}", is_connecting=True)
    assert clock.watch(patience, 10)[-1] == connecting
    patience.others_are_busy = True  # one prepares data, for which this one waits
    assert not any(clock.watch(patience, 600))
    patience.others_are_busy = False
    answers.append(Answer([Call(group="0", number=1, name="barrier", is_over=False)], inside=9))
    assert not any(clock.watch(patience, 55))
    assert clock.watch(patience, 10)[-1] == Reason("no progress for 60 s, in a collective")
    assert "NCCL_SOCKET_IFNAME" in hang_of({}, connecting).fix("")
    assert "NCCL_SOCKET_IFNAME" not in hang_of({}, SLOW).fix("")


@pytest.mark.parametrize(
    ("file_name", "function"), [("backends/exchange.py", "load"), ("training/step_metrics.py", "gather")]
)
def test_a_users_folder_called_runner_is_the_users(file_name: str, function: str) -> None:
    name = f"/home/me/runner/{file_name}"
    frames = stacks.main_thread(
        f'Current thread 0x7e (most recent call first):\n  File "{name}", line 14 in {function}\n'
    )
    assert (stacks.waits(frames), stacks.of_program(frames)) == (False, frames)
    waiting = stacks.main_thread(WAITING.replace("/home/me/train.py", name))
    assert stacks.place(waiting) == f"all_reduce, called in <module> ({os.path.basename(name)}:31)"
    library: dict[str, Any] = {}
    inside, seen = Inside(), list[int]()
    exec(compile("def call(look): look()", name, "exec"), library)
    library["call"](lambda: seen.append(inside.look()))
    assert seen == [0]


def test_the_runners_files_that_stacks_are_searched_for_are_there() -> None:
    for file in [*stacks._BELOW, *stacks._COLLECTIVES, *stacks._CALLS]:
        assert not file.startswith(stacks.PACKAGE) or Path(file).exists(), file
    for file, function in stacks._SYNCS:
        assert not file.startswith(stacks.PACKAGE) or f"def {function}(" in Path(file).read_text(), file


def test_a_wait_for_other_ranks_is_one_call_for_as_long_as_it_lasts() -> None:
    """Looked at from another thread, as the guard's questions are answered."""
    library: dict[str, Any] = {}
    text = "def barrier(wait): wait()"
    exec(compile(text, "/opt/site-packages/torch/distributed/distributed_c10d.py", "exec"), library)
    inside, seen, lock = Inside(), list[int](), threading.Lock()

    def look() -> None:
        seen.extend([inside.look(), inside.look()])
        lock.release()

    lock.acquire()
    for call in (library["barrier"], library["barrier"], lambda wait: wait()):
        threading.Timer(0.2, look).start()
        call(lock.acquire)
    assert seen[0] == seen[1] != 0
    assert seen[2] == seen[3] not in (0, seen[0])
    assert seen[4:] == [0, 0]
    assert not inside.keeps_a_call


def test_a_script_makes_progress_by_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(monkeypatch), [0]
    calls: list[Call] = []
    is_silent = [False]
    requests: Any = SimpleNamespace(
        ask=lambda: asked.append(1),
        answered=lambda: None if is_silent[0] or len(asked) == 1 else Answer(list(calls), inside=0),
    )
    patience = patience_of(Board(), 600.0, in_collective=60.0, requests=requests)
    assert not any(clock.watch(patience, 200))  # it computes
    for number in range(1, 9):  # each collective takes a while
        calls[:] = [Call(group="0", number=number, name="all_reduce", is_over=False)]
        assert not any(clock.watch(patience, 50))
    calls[:] = [Call(group="0", number=8, name="all_reduce")]
    assert not any(clock.watch(patience, 200))  # it computes again
    calls[:] = [Call(group="0", number=9, name="all_reduce", is_over=False)]
    assert not any(clock.watch(patience, 40))
    is_silent[0] = True  # as one that holds the GIL
    assert not any(clock.watch(patience, 200))
    is_silent[0], calls[:] = False, [Call(group="0", number=10, name="all_reduce", is_over=False)]
    assert not any(clock.watch(patience, 40))
    is_silent[0] = True  # only late
    assert not any(clock.watch(patience, 10))
    is_silent[0] = False
    assert clock.watch(patience, 16)[-1] == Reason("no progress for 60 s, in a collective")
    assert len(asked) < 300  # not at each look


def test_after_a_checkpoint_the_phase_before_goes_on() -> None:
    """A program that has saved outside a training may end."""
    board = Board()
    with board.during("saving"):
        assert board.read().is_in_training
    assert not board.read().is_in_training


def test_the_time_of_a_step_is_without_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, board, stack = Clock(monkeypatch), Board(), ExitStack()
    stack.enter_context(board.training(every=1))
    for step, seconds in enumerate([3.0, 0.5, 0.5, 0.5], 1):
        clock.now += seconds
        board.step(step, 9, 1, 2, loss=1.5)
    board.enter("evaluating")
    clock.now += 100
    board.step(5, 9, 2, 2)
    progress = board.read()
    assert (progress.step_seconds, progress.loss, progress.epoch) == (0.5, 1.5, 2)


@pytest.mark.parametrize("every", [20, 50])
def test_the_time_of_a_step_on_a_gpu_is_that_of_whole_log_intervals(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step returns when it is launched (10 ms), and the metrics wait for the device (100 ms a step)."""
    now, board, seen = [0.0], Board(), []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with board.training(every=sys.maxsize):
        for step in range(1, 401):
            now[0] += 0.01
            board.step(step, 400, 1, 1, own=0.002 if step % every < every / 2 else 0.008)
            if step % every == 0:
                now[0] += every * (0.1 - 0.01)
                board.complete()
            if step > every:
                seen.append((board.read().step_seconds, board.read().own_seconds))
    assert seen == [pytest.approx((0.1, 0.005), rel=0.05)] * len(seen)
