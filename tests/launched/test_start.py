"""What a start imports on each rank before its target runs: every module is some opens on a file system that all ranks share."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

from tests.launching import RUNNER, ok, run

# What few launches need, or none; with what it imports itself. (torch imports most of it, but not in the agent.)
NEEDLESS = {
    *("torch", "numpy", "mpi4py", "rich"),
    *("asyncio", "concurrent.futures", "csv", "decimal", "difflib", "email", "http", "importlib.metadata", "logging"),
    *("multiprocessing", "pydoc", "ssl", "unittest", "urllib.request", "uuid", "xml", "zipfile"),
}
OURS = range(100, 161)  # modules of runner/ that an agent may have; one more that it needs may raise the limit
OF_A_PROXY = {
    "runner",
    "runner.cli",
    "runner.guard",
    "runner.guard.process",
    "runner.guard.process.identity",
    "runner.guard.process.proxy",
    "runner.guard.process.wire",
}

SHOW_MODULES = "import sys; print(*sys.modules)"
# The first fork is that of the agent, by a proxy; the second that of the importer, by the agent.
SHOW_MODULES_AT_A_FORK = """
import os, sys
fork, file = int(sys.argv.pop(1)), sys.argv.pop(1)
forks = []
def show():
    forks.append(1)
    if len(forks) == fork:
        open(file, "w").write(" ".join(sys.modules))
os.register_at_fork(before=show)
from runner.cli import main
main(sys.argv[1:])
"""


@cache
def plain() -> set[str]:
    """The modules that Python itself and .pth files import."""
    return {*ok(run(sys.executable, "-c", SHOW_MODULES)).stdout.split()}


def at_fork(number: int, folder: Path) -> set[str]:
    """The modules of the process that forks then."""
    ok(run(sys.executable, "-c", SHOW_MODULES_AT_A_FORK, str(number), str(folder / "modules"), "-c", "pass"))
    return set((folder / "modules").read_text().split()) - plain()


def test_a_proxy_imports_next_to_nothing(tmp_path: Path) -> None:
    loaded = at_fork(1, tmp_path)
    assert {name for name in loaded if name.partition(".")[0] == "runner"} == OF_A_PROXY
    needless = NEEDLESS | {"psutil", "json", "dataclasses", "hashlib", "inspect", "subprocess", "threading"}
    assert loaded & needless == set()


def test_an_agent_forks_with_little(tmp_path: Path) -> None:
    loaded = at_fork(2, tmp_path)
    assert len([name for name in loaded if name.partition(".")[0] == "runner"]) in OURS
    assert loaded & NEEDLESS == set()


def test_a_script_starts_with_little() -> None:
    loaded = {*ok(run(*RUNNER, "-c", SHOW_MODULES)).stdout.split()} - plain()
    assert "psutil" in loaded  # what the runner has imported is shown
    assert loaded & NEEDLESS == set()


def test_explain_needs_little() -> None:
    done = ok(run(sys.executable, "-X", "importtime", *RUNNER[1:], "explain", "--json"))
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "runner.tools.tables.table" in loaded  # of the worker
    assert loaded & NEEDLESS == set()
