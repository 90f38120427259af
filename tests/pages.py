"""The generated parts of the documentation: pages of docs/results, and what stands between two marks in the pages beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.launching import ROOT

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
_END = "<!-- end -->"


def put(page: Path, command: str, text: str) -> None:
    """Replace what stands in a page between the mark of the command that writes it and the end mark."""
    mark = f"<!-- written by {command} -->"
    before, found, rest = page.read_text().partition(mark)
    assert found, f"{page} has no {mark}"
    page.write_text(f"{before}{mark}\n\n{text.strip()}\n\n{_END}{rest.partition(_END)[2]}")


def table(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """In Markdown."""
    first, *others = [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in (titles, *rows)
    ]
    return [first, "|" + "---|" * len(titles), *others]


def rows_of(lines: Iterable[str]) -> list[list[str]]:
    """The cells of a table that ``table`` has written, without its titles."""
    found = [line[1:-1].replace("\\|", "\0").split("|") for line in lines if line.startswith("|")]
    return [[cell.replace("\0", "|").strip() for cell in row] for row in found[2:]]
