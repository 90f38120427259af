"""A guard ends its worker in time whatever the worker, or what takes the output, does."""

from __future__ import annotations

import signal

import pytest

from tests.launched.guard.test_guard import guarded, worker_of
from tests.polling import LIMIT


@pytest.mark.parametrize(
    ("begin", "words"), [("lifeline.board.enter('training'); ", ""), ("", "size=2")], ids=["training", "script"]
)
def test_ctrl_c_ends_ranks_that_do_not_notice_it(begin: str, words: str) -> None:
    """They wait in C, for example: Hydra sends nothing more after SIGINT."""
    with guarded(f"lifeline.tell(Met(None)); {begin}ignore_interrupts()", words=words) as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT) == 130


def test_ctrl_c_leaves_a_script_its_own_end() -> None:
    with guarded("lifeline.tell(Met(None)); sys.exit(6 + interrupts(1.0))", words="size=2") as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT) == 7


def test_output_that_nobody_takes_does_not_keep_the_guard() -> None:
    """A launcher that was stopped, or a pager behind it, no longer reads."""
    with guarded("fill_errors(); os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(timeout=LIMIT) == 137
