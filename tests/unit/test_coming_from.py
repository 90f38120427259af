"""The lines that docs/train/coming-from.md counts are those of the files beside it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.pages import DOCS, rows_of

PAGE = (DOCS / "train" / "coming-from.md").read_text()
FIRST_JOBS = DOCS / "train" / "examples" / "first_jobs"
SCRIPTS = {
    "plain PyTorch": "by_torch",
    "Lightning Fabric 2.6.6": "by_fabric",
    "Accelerate 1.15.0": "by_accelerate",
    "the runner": "by_runner",
}
AT_MOST_MORE = 2


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table_of(title: str) -> dict[str, list[str]]:
    return {name: cells for name, *cells in rows_of(section(title).splitlines())}


def commands_in(cell: str) -> list[str]:
    return re.findall(r"`[^`]+`[^`,]*", cell)


def code_lines(script: Path) -> Counter[str]:
    """Without their indentation."""
    text = script.read_text()
    docstring = ast.parse(text).body[0]
    lines = text.splitlines()[docstring.end_lineno :]
    return Counter(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


JOBS = table_of("A first job, in lines")
MODELS = table_of("A first Llama: torchtitan")


@pytest.mark.parametrize(("name", "script"), SCRIPTS.items())
def test_lines_of_a_first_job(name: str, script: str) -> None:
    plain, own = code_lines(FIRST_JOBS / "by_torch.py"), code_lines(FIRST_JOBS / f"{script}.py")
    counts = [(own - plain).total(), (plain - own).total(), own.total()]
    assert JOBS[name][:3] == [str(count) for count in counts]
    assert all(f"{script}.py" in command for command in commands_in(JOBS[name][3])[-1:])


def test_every_row_is_counted() -> None:
    assert JOBS.keys() == SCRIPTS.keys()


def written(name: str) -> int:
    """Lines that are added, and commands."""
    added, _, _, commands, _ = JOBS[name]
    return int(added) + len(commands_in(commands))


@pytest.mark.parametrize(("name", "more"), [("Lightning Fabric 2.6.6", 0), ("Accelerate 1.15.0", 1)])
def test_what_is_written_for_a_first_job(name: str, more: int) -> None:
    """As many lines and commands more than with the other library as the page says."""
    assert written("the runner") - written(name) == more <= AT_MOST_MORE


def test_commands_of_a_first_llama() -> None:
    (listing,) = re.findall(r"```bash\n(.*?)```", section("A first Llama: torchtitan"), re.DOTALL)
    ours, theirs = (int(MODELS[name][0]) for name in ("the runner", "torchtitan 0.3.0"))
    assert ours == len(listing.splitlines())
    assert theirs == len(commands_in(MODELS["torchtitan 0.3.0"][2]))
    assert ours <= theirs + AT_MOST_MORE
