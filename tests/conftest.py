"""What is collected, in which order, and what is said about that which cannot run here."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from runner.hardware.resources import resources
from runner.versions.features import FEATURES, Feature
from runner.versions.torch_build import torch_build
from tests.cluster.virtual import missing
from tests.launching import ROOT
from tests.selection import is_first

TESTS = Path(__file__).parent

# Files of few tests that take a minute each, or start what does.
LONG = (
    "test_faults",
    "test_scale",
    "test_pages",
    "test_deepspeed",
    "test_supervise",
    "test_compare",
    "test_restart_in_place",
    "test_conformance",
)

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

left_out: list[str] = []  # which tests are not run, and why
_OF_GPUS = "GPUs"

# Files that cannot even be imported where torch lacks a feature.
FILES_OF_FEATURES = {"test_plan.py": "plan"}


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Fast ones first: unit tests before those that start launchers; none of those whose launchers are not there.

    If workers share the tests (make test-all), they begin with the cluster's, and of a folder with the files that take longest, which
    are those of LONG and then those of the most tests, so that none is left with a long one at the end.
    """
    for item in items:
        function = getattr(item, "originalname", item.name)
        if is_first(item.path.relative_to(TESTS).as_posix(), function):
            item.add_marker("first")
    yield  # then those are left that -m, -k and others have chosen
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    order = {"unit": 0, "layouts": 1, "launched": 2, "cluster": -1 if is_shared else 3, "gpu": 4}
    tests = Counter(item.path for item in items if is_shared)
    items.sort(key=lambda item: (order[_kind(item)], is_shared and item.path.stem not in LONG, -tests[item.path]))
    if unknown := {key for item in items for marker in item.iter_markers("needs") for key in marker.args} - set(
        FEATURES
    ):
        raise pytest.UsageError(
            f"needs({', '.join(map(repr, unknown))}): runner/versions/features.py has no such feature"
        )
    for item in items:  # for tests/versions.py
        item.user_properties += [("needs", key) for marker in item.iter_markers("needs") for key in marker.args]
    parts = {
        "the virtual cluster": (lambda item: item.path.parent.name == "cluster", missing(slurm=True) or _missing_mpi()),
        "Horovod": (lambda item: item.path.stem == "test_horovod" or "[horovod]" in item.name, _missing_horovod()),
        "data libraries": (lambda item: item.path.stem == "test_data_libraries", _missing_data_libraries()),
        **{feature.name: (partial(_needs, key), _missing_in_torch(feature)) for key, feature in FEATURES.items()},
        _OF_GPUS: (lambda item: item.path.parent.name == "gpu", "" if resources(os.environ).gpus else "there is none"),
    }
    for what, (belongs, reason) in parts.items():
        without = [item for item in items if reason and belongs(item)]
        if without:
            items[:] = [item for item in items if item not in without]
            config.hook.pytest_deselected(items=without)
            left_out.append(f"{len(without)} tests of {what} are left out: {reason}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    key = FILES_OF_FEATURES.get(collection_path.name)
    if key is None or not (reason := _missing_in_torch(FEATURES[key])):
        return None
    left_out.append(f"{collection_path.name} is left out: {reason}")
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes a file at a time, whose tests may share a job; and all of a folder's that share one.

    (Groups by pytest-xdist's marker have no effect with pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            folder = file.rpartition("/")[0]
            return folder if folder.endswith("/layouts") else file

    return ByFile(config, log)


def _kind(item: pytest.Item) -> str:
    """The folder of tests/ that a test is in; tests/launched/layouts is one of its own."""
    folders = item.path.relative_to(TESTS).parts[:-1]
    return "layouts" if "layouts" in folders else folders[0]


def pytest_configure(config: pytest.Config) -> None:
    """In CI a test that fails is run once more. One that passes then is a defect, too, and is named at the end."""
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # as in a shell's background: Ctrl-C would be tried on deaf programs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") == "true":
        config.option.reruns = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"was run again, as it failed: {report.nodeid}", yellow=True)
        terminalreporter.write_line(report.longreprtext)
    for line in left_out:
        terminalreporter.write_line(line, yellow=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a test that was skipped or left out has failed: everything it needs is installed there, but for GPUs."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = left_out
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    lacking = [line for line in left_out if f"tests of {_OF_GPUS}" not in line]
    if (skipped or lacking) and os.environ.get("CI") == "true" and exitstatus == 0:
        reporter.write_line(
            f"{len(skipped) + len(lacking)} skipped or left out in CI, which counts as failed", red=True
        )
        session.exitstatus = 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has left out: it alone has collected."""
    left_out.extend(line for line in getattr(node, "workeroutput", {}).get("left_out", []) if line not in left_out)


def _missing_horovod() -> str:
    return "" if find_spec("horovod") else "it is not installed: make horovod"


def _missing_data_libraries() -> str:
    missing = [name for name in ("datasets", "webdataset") if find_spec(name) is None]
    return f"pip install {' '.join(missing)}" if missing else ""


def _needs(key: str, item: pytest.Item) -> bool:
    """Whether one of a test's markers ``needs`` names this feature of torch."""
    return any(key in marker.args for marker in item.iter_markers("needs"))


def _missing_in_torch(feature: Feature) -> str:
    return feature.shortfall(torch_build().version).replace("needs", "it needs", 1)


def _missing_mpi() -> str:
    if not (own := Path(sys.executable).with_name("mpirun")).exists():
        return f"{own} is not there, as with MPIRUN=… make takes another: make without it"
    wanted = [
        Path("/usr/bin/mpirun.openmpi"),
        *(ROOT / ".venv" / "mpi" / name / "bin" for name in ("mpich", "intelmpi")),
    ]
    absent = [str(path) for path in wanted if not path.exists()]
    return f"{', '.join(absent)} not there: make cluster-deps" if absent else ""
