"""The lines that docs/train/coming-from.md counts are those of the files beside it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.pages import DOCS, rows_of

PAGE = (DOCS / "train" / "coming-from.md").read_text()
FIRST_JOBS = DOCS / "train" / "examples" / "first_jobs"
SCRIPTS = {
    "plain PyTorch": "by_torch",
    "Lightning Fabric 2.6.6": "by_fabric",
    "Accelerate 1.15.0": "by_accelerate",
    "the runner": "by_runner",
}


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


def test_lines_of_a_first_job() -> None:
    assert JOBS.keys() == SCRIPTS.keys()
    plain = code_lines(FIRST_JOBS / "by_torch.py")
    for name, script in SCRIPTS.items():
        own = code_lines(FIRST_JOBS / f"{script}.py")
        counts = [(own - plain).total(), (plain - own).total(), own.total()]
        assert JOBS[name][:3] == [str(count) for count in counts]
        assert all(f"{script}.py" in command for command in commands_in(JOBS[name][3])[-1:])


def test_commands_of_a_first_llama() -> None:
    (listing,) = re.findall(r"```bash\n(.*?)```", section("A first Llama: torchtitan"), re.DOTALL)
    ours, theirs = (int(MODELS[name][0]) for name in ("the runner", "torchtitan 0.3.0"))
    assert ours == len(listing.splitlines())
    assert theirs == len(commands_in(MODELS["torchtitan 0.3.0"][2]))
    assert ours <= theirs + 2
