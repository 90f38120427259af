"""Starts a worker under guard, which runs a line of Python with the names of this file: ``guarded.py LINE [BEFORE [WATCHED [WORDS]]]``.

As ``supervise`` starts its attempts, ``--log-dir FOLDER --began TIME`` may stand before the line.
BEFORE is run before the guard starts; WATCHED and WORDS are arguments of ``Watched`` and ``Words``, as Python writes them.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

children: list[subprocess.Popen[bytes]] = []


def start_children(*, waits: bool = True) -> None:
    """One that SIGTERM ends, one that ignores it, and one in a session of its own. Prints their ids, and waits for a line."""
    deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 300"]
    children.append(subprocess.Popen(["sleep", "300"]))
    children.append(subprocess.Popen(deaf, stdout=subprocess.PIPE))
    children.append(subprocess.Popen(["sleep", "301"], start_new_session=True))
    children[1].stdout.readline()
    print(*(child.pid for child in children), flush=True)
    if waits:
        sys.stdin.readline()


def tell_and_leave(*_: object) -> None:
    """A handler: print how the first child has ended, half a second later."""
    time.sleep(0.5)
    print(children[0].poll(), flush=True)
    os._exit(42)


def interrupts(then: float = 0.0) -> int:
    """How often SIGINT came, so many seconds after it came first."""
    received = []
    signal.signal(signal.SIGINT, lambda *_: received.append(1))
    print("ready", flush=True)
    end = time.monotonic() + 30
    while not received and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(then)
    return len(received)


def ignore_interrupts() -> None:
    """As a program that waits in C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(60)


def fill_errors() -> None:
    """Write to standard error, which nobody reads, until it takes no more."""
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x")
    except BlockingIOError:
        os.set_blocking(2, True)


class Guarded:
    """Ranks, each of which runs a line."""

    is_refused = False
    shares = True

    def __init__(self, line: str, watched: str, words: str) -> None:
        self.line, self.watched, self.words = line, watched, words

    def rank(self, origin):
        from runner.guard.settings import Watched, Words

        words = Words(
            label="rank 0 of 1 on host here",
            no_rendezvous=lambda code: f"nobody came ({code})",
            is_reporting=True,
            how_to_resume="continue",
            **eval(f"dict({self.words})"),
        )
        names = {"origin": origin, "os": os, "signal": signal, "Path": Path}
        return words, Watched(**{"rendezvous_timeout": 60.0} | eval(f"dict({self.watched})", names))

    def prepare(self) -> str:
        return ""

    def work(self, lifeline) -> None:
        from runner.backends.shutdown import shutdown
        from runner.guard.process.lifeline import Fails, Met, Seeks

        print("worker", os.getpid(), flush=True)
        code = 0
        try:
            exec(self.line, globals() | {"lifeline": lifeline, "Seeks": Seeks, "Met": Met, "Fails": Fails})
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        shutdown(code, collective=False)


def main(line: str, before: str = "", watched: str = "", words: str = "") -> None:
    exec(before)
    from runner.guard.process import agent
    from runner.guard.process.proxy import start

    start(lambda *given: agent.serve(*given, lambda: Guarded(line, watched, words)))


if __name__ == "__main__":
    main(*sys.argv[5 if sys.argv[1] == "--log-dir" else 1 :])
