"""What is collected, in which order, and what is said about that which cannot run here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.virtual import missing
from tests.launching import ROOT

left_out: list[str] = []  # why the tests of the virtual cluster are not run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast ones first: unit tests before those that start launchers; without what a cluster needs, none of those."""
    order = {"unit": 0, "parallel": 1, "cluster": 2, "faults": 3, "gpu": 4}
    items.sort(key=lambda item: order.get(item.path.parent.name, 9))
    reason = missing(slurm=True) or _missing_mpi()
    clustered = [item for item in items if "cluster" in item.path.parts]
    if reason and clustered:
        items[:] = [item for item in items if item not in clustered]
        config.hook.pytest_deselected(items=clustered)
        left_out.append(f"{len(clustered)} tests of the virtual cluster are left out: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in left_out:
        terminalreporter.write_line(line, yellow=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a test that was skipped or left out has failed: everything it needs is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if (skipped or left_out) and os.environ.get("CI") == "true" and exitstatus == 0:
        reporter.write_line(
            f"{len(skipped) + len(left_out)} skipped or left out in CI, which counts as failed", red=True
        )
        session.exitstatus = 1


def _missing_mpi() -> str:
    wanted = [
        Path("/usr/bin/mpirun.openmpi"),
        *(ROOT / ".venv" / "mpi" / name / "bin" for name in ("mpich", "intelmpi")),
    ]
    absent = [str(path) for path in wanted if not path.exists()]
    return f"{', '.join(absent)} not there: make cluster-deps" if absent else ""
