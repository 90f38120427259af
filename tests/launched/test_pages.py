"""The commands of docs/start, docs/train and docs/courses do and print what the pages say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.launching import mpirun_path, run
from tests.listings import Command, File, listings
from tests.pages import DOCS
from tests.polling import LIMIT

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
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(mpirun_path()).parent), os.environ["PATH"]])
    for one in listings(PAGES[page]):
        if isinstance(one, File):
            (tmp_path / one.name).write_text(one.text, encoding="utf-8")
            continue
        done = run(
            "bash", "-c", one.line, cwd=tmp_path, timeout=2 * LIMIT, PATH=path, COLUMNS="200", MPIRUN=mpirun_path()
        )
        output = f"$ {one.line}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) == one.is_refused, output
        assert one.missing(output) == [], output


def test_there_are_pages() -> None:
    assert set(NEEDS) <= set(PAGES)
