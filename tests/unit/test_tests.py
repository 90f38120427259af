"""The lists of tests name tests that exist, and pages say what was measured and name commands that exist."""

from __future__ import annotations

import math
import re

import pytest

from tests.campaigns.faults import page as faults
from tests.campaigns.parity import __main__ as parity
from tests.conftest import LONG
from tests.launching import ROOT
from tests.listings import Command, listings
from tests.pages import DOCS, RESULTS
from tests.programs.layouts.deviations import largest
from tests.selection import FIRST, covers

TESTS = ROOT / "tests"
FUNCTIONS = [
    f"{path.relative_to(TESTS).as_posix()}::{name}"
    for path in TESTS.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
]
PAGES = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]


@pytest.mark.parametrize("entry", FIRST)
def test_an_entry_of_the_selection_has_tests_and_no_other_entry_has_them(entry: str) -> None:
    covered = [test for test in FUNCTIONS if covers(entry, test)]
    assert covered
    assert not [other for other in FIRST if other != entry and any(covers(other, test) for test in covered)]


def test_long_files_exist() -> None:
    assert set(LONG) <= {path.stem for path in TESTS.rglob("test_*.py")}


def test_two_make_targets_share_all_tests() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^(test\S*): setup.*\n\t\$\(BIN\)/python -m pytest (.*)", makefile, re.MULTILINE))
    assert recipes["test"].replace("-m first ", "") == recipes["test-all"]
    assert recipes["test-rest"].replace("-m 'not first' ", "") == recipes["test-all"]


def test_pages_name_modules_of_the_tests_that_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {name.replace(".", "/") for name in re.findall(r"\btests(?:\.[a-z_]+)+", text)}
    assert named
    assert [
        one for one in sorted(named) if not any((ROOT / f"{one}{end}").exists() for end in (".py", "/__init__.py"))
    ] == []


def test_commands_are_listed_in_pages_that_a_test_runs() -> None:
    run = {DOCS / "start", DOCS / "train", DOCS / "courses"}  # by tests/launched/test_pages.py
    shown = {page for page in PAGES if any(isinstance(one, Command) for one in listings(page))}
    assert shown
    assert [page for page in shown if page.parent not in run] == []


def test_a_listing_is_compared_without_its_numbers() -> None:
    shown = Command("run", ["epoch 3/3  loss 1e-05 on laptop"])
    assert shown.missing("a line\nepoch 12/15   loss 0.25 on node-1.cluster") == []
    assert shown.missing("epoch 3/3  test 1e-05 on laptop") == shown.printed


@pytest.mark.parametrize(
    ("page", "summary"),
    [
        ("run/failures", faults.summary(faults.read((RESULTS / "faults.md").read_text()))),
        ("train/parallelism", parity.summary(parity.read((RESULTS / "parity.md").read_text()))),
    ],
)
def test_a_page_says_what_its_results_say(page: str, summary: str) -> None:
    assert f"\n{summary}\n" in (DOCS / f"{page}.md").read_text()


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", text)
    assert links
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


@pytest.mark.parametrize("deviations", [(math.nan, 1e-12), (1e-12, math.nan)])
def test_a_deviation_that_is_no_number_is_the_largest(deviations: tuple[float, float]) -> None:
    assert largest(deviations) == math.inf
