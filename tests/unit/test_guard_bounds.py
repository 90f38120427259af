"""A guard ends its worker in time whatever the worker, or what takes the output, does."""

from __future__ import annotations

import signal

from tests.unit.test_guard import guarded, worker_of

IN_TRAINING = "lifeline.rendezvous_complete(); lifeline.board.enter('training')\n"


def test_ctrl_c_ends_a_training_that_does_not_notice_it() -> None:
    """It waits in C, for example: Hydra sends nothing more after SIGINT."""
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with guarded(IN_TRAINING + body) as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_output_that_nobody_takes_does_not_keep_the_guard() -> None:
    """A launcher that was stopped, or a pager behind it, no longer reads."""
    body = (
        "os.set_blocking(2, False)\n"
        "try:\n    while True: os.write(2, b'x')\n"
        "except BlockingIOError: os.set_blocking(2, True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with guarded(body) as process:
        assert process.wait(timeout=30) == 137
