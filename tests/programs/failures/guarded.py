"""Starts a worker under guard, which runs a line of Python with the names of this file: ``guarded.py LINE [BEFORE [WATCHED [WORDS]]]``.

BEFORE is run before the guard starts; WATCHED and WORDS are arguments of ``Watched`` and ``Words``, as Python writes them.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

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


def spares() -> list[psutil.Process]:
    """The guard's other children in this session: spare processes, and for a moment the sweeper, which begins one of its own."""
    found = []
    for one in psutil.Process(os.getppid()).children():
        with suppress(ProcessLookupError):  # it has just ended
            if one.pid != os.getpid() and os.getsid(one.pid) == os.getsid(0):
                found.append(one)
    return found


def wait_for_spare() -> psutil.Process:
    """The process that would be the next worker."""
    while True:
        before = spares()
        time.sleep(0.5)
        for one in spares():
            if one in before:
                return one


def ends_of_pipes(process: int) -> set[tuple[str, str]]:
    """The pipes that a process holds, and on which side."""
    ends = set()
    for number in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{process}/fd/{number}")
            if target.startswith("pipe:") and int(number) > 2:
                ends.add((target, Path(f"/proc/{process}/fdinfo/{number}").read_text().split()[3][-1]))
    return ends


def shared_with_a_spare() -> None:
    """Print how many ends of pipes the guard holds, and how many of them a spare process does, too, once it has closed some."""
    end = time.monotonic() + 30
    while True:
        guard, spare = ends_of_pipes(os.getppid()), ends_of_pipes(wait_for_spare().pid)
        if not guard & spare or time.monotonic() > end:
            break
    print("ends", len(guard), len(guard & spare), flush=True)


def count_files() -> None:
    """Print how many files the guard holds open with a spare process: the least of some counts, as it opens others for a moment."""
    wait_for_spare()
    guard = psutil.Process(os.getppid())
    counts = []
    for _ in range(20):
        time.sleep(0.05)
        counts.append(guard.num_fds())
    print("files", min(counts), flush=True)


def count_files_around_the_end_of_a_spare() -> None:
    count_files()
    spare = wait_for_spare()
    spare.kill()
    spare.wait()
    count_files()


def main(line: str, before: str = "", watched: str = "", words: str = "") -> None:
    exec(before)
    from runner.guard.settings import Watched, Words
    from runner.guard.start import start_worker
    from runner.guard.worker_messages import Fails, Met, Seeks

    texts = Words(
        label="rank 0 of 1 on host here",
        no_rendezvous=lambda code: f"nobody came ({code})",
        is_reporting=True,
        how_to_resume="continue",
        **eval(f"dict({words})"),
    )
    lifeline = start_worker(texts, Watched(**{"rendezvous_timeout": 60.0} | eval(f"dict({watched})")))
    print("worker", os.getpid(), flush=True)
    exec(line, globals() | {"lifeline": lifeline, "Seeks": Seeks, "Met": Met, "Fails": Fails})


if __name__ == "__main__":
    main(*sys.argv[1:])
