"""What a start imports on each rank before its target runs: every module is some opens on a file system that all ranks share."""

from __future__ import annotations

import re
import sys

from tests.launching import RUNNER, ok, run

# What few launches need, or none; with what it imports itself. (torch imports most of it, but not in the guard.)
NEEDLESS = {
    *("torch", "numpy", "mpi4py", "rich"),
    *("asyncio", "concurrent.futures", "csv", "decimal", "difflib", "email", "http", "importlib.metadata", "logging"),
    *("multiprocessing", "pydoc", "ssl", "unittest", "urllib.request", "uuid", "xml", "zipfile"),
}
OURS = range(100, 151)  # modules of runner/ that a guard may have; one more that it needs may raise the limit

SHOW_MODULES = "import sys; print(*sys.modules)"
SHOW_MODULES_AT_THE_FORK = f"""
import os, sys
def show():
    {SHOW_MODULES}
    sys.stdout.flush()
    os._exit(0)
os.register_at_fork(before=show)
from runner.cli import main
main(sys.argv[1:])
"""


def shown(*command: str) -> set[str]:
    """The modules that a program shows, without those that Python itself and .pth files import."""
    plain = ok(run(sys.executable, "-c", SHOW_MODULES)).stdout
    return set(ok(run(*command)).stdout.split()) - set(plain.split())


def test_a_guard_forks_with_little() -> None:
    loaded = shown(sys.executable, "-c", SHOW_MODULES_AT_THE_FORK, "-c", "pass")
    assert len([name for name in loaded if name.partition(".")[0] == "runner"]) in OURS
    assert loaded & NEEDLESS == set()


def test_a_script_starts_with_little() -> None:
    loaded = shown(*RUNNER, "-c", SHOW_MODULES)
    assert "psutil" in loaded  # what the runner has imported is shown
    assert loaded & NEEDLESS == set()


def test_explain_needs_little() -> None:
    done = ok(run(sys.executable, "-X", "importtime", *RUNNER[1:], "explain", "--json"))
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "runner.tools.report.table" in loaded  # of the worker
    assert loaded & NEEDLESS == set()
