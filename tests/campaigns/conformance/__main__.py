"""Run PyTorch's own tests of a backend on gloo and, in gloo's place, on mpi4py over each MPI: make conformance

    make conformance                            all tests on all MPIs; writes docs/results/conformance.md
    make conformance MPI=mpich TEST=send_recv   some tests on one; writes build/conformance/conformance.md
    make conformance VENV=.venv/torch-2.9 VERSIONS=envs/constraints-2.9.txt   an older torch; writes its section of conformance-older.md

Exit code 0, 1 where a test fails that gloo passes and left_out.py does not name, 2 where the request cannot be met.
What a failed test said is in build/conformance/MPI/TEST.txt.
"""

from __future__ import annotations

import argparse
import importlib
import re
import signal
import sys
from pathlib import Path
from typing import Any

from runner.base.errors import EXIT_FAILURE, EXIT_OK, RunnerError, UsageError
from runner.base.quantities import seconds
from runner.options.parsing import Parser
from runner.versions.features import number_of
from runner.versions.torch_build import release_of, torch_build
from tests.campaigns.conformance.jobs import IN_GLOOS_PLACE, Plan, run
from tests.campaigns.conformance.left_out import LEFT_OUT
from tests.campaigns.conformance.mpis import MPIS, version
from tests.campaigns.conformance.outcome import Outcomes
from tests.campaigns.conformance.page import brief, complaints, page, passed, section, summary
from tests.launching import ROOT
from tests.pages import DOCS, RESULTS, put

BUILD = ROOT / "build" / "conformance"
OLDER = RESULTS / "conformance-older.md"  # a section for each older torch that it has a mark for
RANKS = 3  # torch's tests of groups take ranks 1 and 2, and leave one out
LIMIT = 60.0  # seconds for a test; torch's own default for its operations


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    suite = _suite(options.suite)
    known = suite.names()
    tests = {name: suite.limit(name, options.limit) for name in _chosen(known, options.test)}
    chosen = [options.mpi] if options.mpi else list(MPIS)
    here = [name for name in chosen if MPIS[name].is_here()]
    if not here or not MPIS["openmpi"].is_here():
        raise UsageError(
            f"no mpirun of {', '.join(chosen)} is here; make setup brings Open MPI, make cluster-deps the others"
        )
    notes = [f"{MPIS[name].title} is not here: make cluster-deps" for name in chosen if name not in here]
    gloo = _run("gloo", "openmpi", tests, options.suite)
    wanted = {name: tests[name] for name in passed(gloo)}
    by_mpi = {version(MPIS[name]): _run(name, name, wanted, options.suite, *IN_GLOOS_PLACE) for name in here}
    is_whole = (
        chosen == here and not options.mpi and not options.test and options.suite == _parser().get_default("suite")
    )
    older = f"make conformance with torch {number_of(release_of(torch_build().version))}"
    is_older = is_whole and f"<!-- written by {older} -->" in OLDER.read_text()
    output: Path = OLDER if is_older else RESULTS / "conformance.md" if is_whole else BUILD / "conformance.md"
    if is_older:
        put(OLDER, older, section(gloo, by_mpi, LEFT_OUT, RANKS, notes))
    else:
        output.write_text(page(gloo, by_mpi, LEFT_OUT, RANKS, notes))
    if is_whole and not is_older:
        put(DOCS / "run/mpi-collectives.md", "make conformance", brief(gloo, by_mpi, LEFT_OUT, notes))
    wrong = complaints(gloo, by_mpi, LEFT_OUT, known)
    print("\n".join([*wrong, *notes, *summary(gloo, by_mpi, LEFT_OUT), f"wrote {output.relative_to(ROOT)}"]))
    return EXIT_FAILURE if wrong else EXIT_OK


def _parser() -> Parser:
    parser = Parser(prog="make conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", choices=list(MPIS), help="one MPI only (make's MPI=…)")
    parser.add_argument("--test", default="", metavar="PATTERN", help="only tests whose name it is found in (TEST=…)")
    parser.add_argument("--limit", type=seconds, default=LIMIT, help="seconds for a test (default: 60)")
    parser.add_argument(
        "--suite", default="tests.campaigns.conformance.torch_tests", help="the module that has the tests"
    )
    return parser


def _suite(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name} needs the package {error.name}, which is not installed; pip install {error.name}"
        ) from None


def _chosen(known: list[str], pattern: str) -> list[str]:
    try:
        chosen = [name for name in known if re.search(pattern, name)]
    except re.error as error:
        raise UsageError(f"TEST={pattern} is no regular expression ({error}); for example TEST=send_recv") from None
    if not chosen:
        raise UsageError(f"TEST={pattern} is in none of the {len(known)} names; for example TEST={known[0]}")
    return chosen


def _run(title: str, mpi: str, tests: dict[str, float], suite: str, *options: str) -> Outcomes:
    """Run the tests, with a line for each as it ends."""
    found: Outcomes = {}
    plan = Plan(mpi=MPIS[mpi], options=options, suite=suite, ranks=RANKS, logs=BUILD / title)
    for name, outcome in run(plan, tests):
        found[name] = outcome
        line = f"{title:9} {len(found):3}/{len(tests)} {name:60} {outcome.status:7} {outcome.seconds:6.1f} s  {outcome.reason}"
        print(line.rstrip(), flush=True)
    return found


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # what was started ends with this
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(main(sys.argv[1:]))
    except RunnerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
