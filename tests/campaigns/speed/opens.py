"""How many files a job opens and looks for on one host, which a shared file system has to answer: one allreduce, by each way of starting it.

    python -m tests.campaigns.speed.opens [--ranks 8] [--write]

Needs strace. What is below /proc, /sys and /dev is not counted, nor fstat(). ``--write``: into docs/results/opens.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tests.campaigns.speed.startup import BY_HAND, SCRIPT
from tests.launching import RUNNER, mpirun_path, ok, run, torchrun_command
from tests.pages import RESULTS, table

_OPENS = ("open", "openat", "openat2", "execve")
_LOOKS = ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat")
_CALL = re.compile(r'^\d+ +(\w+)\([^"]*"([^"]+)"')
_OF_KERNEL = ("/proc/", "/sys/", "/dev/")


def commands(ranks: int) -> dict[str, list[str]]:
    mpirun = [mpirun_path(), "-np", str(ranks)]
    return {
        "the runner": [*mpirun, *RUNNER, SCRIPT],
        "the runner, --share-import off": [*mpirun, *RUNNER, "--share-import", "off", SCRIPT],
        "torchrun": torchrun_command(ranks, SCRIPT),
        "mpirun, variables set by hand": [*mpirun, "bash", "-c", BY_HAND],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="into docs/results/opens.md")
    given = parser.parse_args()
    rows = []
    for name, command in commands(given.ranks).items():
        ok(run(*command))  # so that Python's compiled files are there
        print(f"{name} …", file=sys.stderr, flush=True)
        opens, looks = counted(command)
        rows.append((name, opens, looks, opens + looks))
        print(f"{name:32} {opens:7} opened, {looks:7} looked for, {opens + looks:7} in all", flush=True)
    if given.write:
        (RESULTS / "opens.md").write_text(page(given.ranks, rows))


def counted(command: list[str]) -> tuple[int, int]:
    """(opens, looks) of a command and all that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=%file", "-e", "signal=none", "-o", str(trace)]
        ok(run(*strace, *command))
        with trace.open(errors="replace") as lines:
            return count(lines)


def count(lines: Iterable[str]) -> tuple[int, int]:
    """(opens, looks) in what strace has written."""
    calls: Counter[str] = Counter()
    for line in lines:
        if (found := _CALL.match(line)) and not found[2].startswith(_OF_KERNEL):
            calls[found[1]] += 1
    return sum(calls[name] for name in _OPENS), sum(calls[name] for name in _LOOKS)


def page(ranks: int, rows: list[tuple[str, int, int, int]]) -> str:
    """docs/results/opens.md."""
    written = (
        f"Written by `python -m tests.campaigns.speed.opens --ranks {ranks} --write` on {date.today()}: one allreduce of {ranks} ranks on "
        f"one host, torch {version('torch').partition('+')[0]}. Counted by strace, without what is below /proc, /sys and /dev."
    )
    titles = ("started by", "files opened", "looked for (stat, access, readlink)", "in all")
    return "\n".join(["# Files that a start opens and looks for", "", written, "", *table(titles, rows), ""])


if __name__ == "__main__":
    main()
