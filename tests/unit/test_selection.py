"""Each test is run by `make test` or by `make test-rest`, and by one of them only."""

from __future__ import annotations

import re

import pytest

from tests.launching import ROOT
from tests.selection import FIRST, covers, is_first

TESTS = ROOT / "tests"
WRITTEN = [
    f"{path.relative_to(TESTS).as_posix()}::{name}"
    for path in TESTS.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("entry", FIRST)
def test_each_entry_has_tests_and_those_no_other_has(entry: str) -> None:
    listed = [test for test in WRITTEN if covers(entry, test)]
    assert listed
    assert not [other for other in FIRST if other != entry and any(covers(other, test) for test in listed)]


def test_an_entry_is_a_folder_a_file_or_a_function() -> None:
    assert is_first("unit/base/test_locks.py", "test_a")
    assert is_first("launched/test_explain.py", "test_a")
    assert is_first("launched/test_refusals.py", "test_before_torch")
    assert not is_first("launched/test_refusals.py", "test_before_torch_is_there")
    assert not is_first("launched/test_explain.py.py", "test_a")


def test_what_the_one_command_runs_the_other_leaves_out() -> None:
    recipes = dict(
        re.findall(r"^(test\S*): setup.*\n\t\$\(BIN\)/python -m pytest (.*)", (ROOT / "Makefile").read_text(), re.M)
    )
    assert recipes["test"].replace("-m first ", "") == recipes["test-all"]
    assert recipes["test-rest"].replace("-m 'not first' ", "") == recipes["test-all"]
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [command for command in commands if command.startswith("make test")] == ["make test", "make test-rest"]


def test_the_marker_comes_from_the_list_only() -> None:
    for path in TESTS.rglob("*.py"):
        assert "mark." + "first" not in path.read_text(), path
