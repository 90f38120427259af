"""The commands of docs/start, docs/train and docs/courses do and print what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.listings import Command, listings, run_page
from tests.pages import DOCS

# What a page needs of torch (runner/versions/features.py). Its listings are of the newest.
NEEDS = {
    "start/first-job": ("mpi4py",),
    "courses/fsdp-and-tp": ("fsdp", "tp", "workloads.llama"),
    "courses/parallel-training": ("pp", "plan", "sequence-parallel", "workloads.llama"),
}
PAGES = {
    page.relative_to(DOCS).with_suffix("").as_posix(): page
    for folder in ("start", "train", "courses")
    for page in sorted((DOCS / folder).glob("*.md"))
    if any(isinstance(one, Command) for one in listings(page))
}


@pytest.mark.parametrize(
    "page", [pytest.param(name, marks=pytest.mark.needs(*NEEDS[name]) if name in NEEDS else ()) for name in PAGES]
)
def test_a_page_is_true(page: str, tmp_path: Path) -> None:
    for one, code, output in run_page(PAGES[page], tmp_path):
        assert (code != 0) == one.is_refused, output
        assert one.missing(output) == [], output


def test_there_are_pages() -> None:
    assert set(NEEDS) <= set(PAGES)
