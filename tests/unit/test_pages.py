"""The generated pages: what they have can be read again, and what the pages beside them say follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.faults import page as fault_page
from tests.campaigns.faults.page import Ended
from tests.campaigns.faults.scene import ALL
from tests.campaigns.parity import __main__ as parity
from tests.pages import DOCS, RESULTS, put, rows_of, table

FOUND = {
    ("1", "a rank fails"): {
        "openmpi5": Ended(seconds="0.5", code="1", line="rank 1 of 2: a | b"),
        "mpich": Ended(seconds="0.7", code="1", line="rank 1 of 2: a | b"),
        "intelmpi": Ended(seconds="1.2", code="255", line="rank 1 of 2: a | b", problem="left 2 processes"),
    },
    ("2", "a rank hangs"): {
        "openmpi5": Ended(seconds="3.0", code="70", line="no progress for 3 s: rank 1"),
        "intelmpi": Ended(seconds="3.1", code="70", line="no progress for 4 s: rank 1"),
        "mpich": Ended(seconds="", code="-1", line="", problem="the job has not ended"),
    },
}


def test_a_table_can_be_read_again() -> None:
    rows = [["a | b", ""], ["", "c"]]
    assert rows_of(table(("one", "two"), rows)) == rows


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- written by make it -->\n\nold\n\n<!-- end -->\n\nafter\n")
    put(page, "make it", "new\n")
    assert page.read_text() == "before\n\n<!-- written by make it -->\n\nnew\n\n<!-- end -->\n\nafter\n"


def test_a_line_is_once_in_the_page_of_faults() -> None:
    text = fault_page.page(FOUND, ALL)
    assert text.count("a \\| b") == 1
    assert "| 2 | a rank hangs | openmpi5, intelmpi | no progress for 3 s: rank 1 |" in text
    assert "1.2 · 255 · left 2 processes" in text


def test_the_list_of_faults() -> None:
    lines = fault_page.summary(FOUND).splitlines()
    assert lines[2] == "| 1 | a rank fails | 1 | 1.2 (intelmpi); intelmpi: left 2 processes |"
    assert lines[3].startswith("| 2 | a rank hangs | 70, -1 | 3.1 (intelmpi); mpich: ")


def test_a_page_of_faults_can_be_read_again() -> None:
    text = fault_page.page(FOUND, ALL)
    assert fault_page.read(text)["1", "a rank fails"] == FOUND["1", "a rank fails"]
    assert fault_page.page(fault_page.read(text), ALL) == text


def test_a_page_of_deviations_can_be_read_again() -> None:
    row = dict.fromkeys(("gloo, float64", "gloo, float32", "mpi4py, float64", "mpi4py, float32"), "1e-15")
    layouts = ("--strategy ddp", "--strategy ddp --pp 2 --pp-schedule gpipe", "--strategy ddp --pp 2 --pp-schedule zbv")
    cells = {("2", layout): row for layout in layouts} | {("4", layouts[1]): row | {"gloo, float32": "2e-07"}}
    text = parity.page(cells)
    assert "| 2 | `--strategy ddp --pp 2` | gpipe, zbv | 1e-15 |" in text
    assert parity.read(text) == cells
    assert "| `--strategy ddp --pp` | 2, 4 | 1e-15 | 2e-07 | 1e-15 | 1e-15 |" in parity.summary(cells)


@pytest.mark.parametrize(
    ("page", "of"),
    [
        ("run/failures", fault_page.summary(fault_page.read((RESULTS / "faults.md").read_text()))),
        ("train/parallelism", parity.summary(parity.read((RESULTS / "parity.md").read_text()))),
    ],
)
def test_a_page_says_what_its_results_say(page: str, of: str) -> None:
    assert f"\n{of}\n" in (DOCS / f"{page}.md").read_text()
