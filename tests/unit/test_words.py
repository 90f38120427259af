"""Words that only this project used for what its field has words for, and docstrings that need the code beside them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.launching import ROOT

# The word, and what to say. guard/ and its tests are left out: their names are its own subject.
WORDS = {
    r"(bear|bears|borne)": "support",
    r"mend(s|ed|ing)?": "fix",
    r"misfits?": "mislaunch, or a compatibility check",
    r"astray": "say what is wrong",
    r"go(es|ing)? on": "continue, resume",
    r"went on": "continued",
    r"pass(es|ed|ing)? over(?! the data)": "skip",
    r"(un)?seal(s|ed|ing)?": "manifest",
    r"drafts?": "staging folder, or temporary",
    r"outlines?": "on meta",
}
PARTS = ("runner", "workloads", "tests", "docs", "README.md", "CHANGELOG.md", "mpi_scripts", "envs")
LEFT_OUT = (
    "runner/guard/",
    "tests/unit/guard/",
    "tests/launched/guard/",
    "tests/unit/test_words.py",
    "docs/results/",
    "tests/data/",
    "docs/_build/",
)


def files() -> list[str]:
    paths = [path for part in PARTS for path in [ROOT / part, *(ROOT / part).rglob("*")] if path.is_file()]
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.suffix in {".py", ".md", ".sh", ".j2"}]
    return [name for name in names if not name.startswith(LEFT_OUT)]


def pattern_of(word: str) -> re.Pattern[str]:
    """Finds the word, but not in names: cuts_on, went-on."""
    return re.compile(rf"(?<![\w-]){word}(?![\w-])", re.IGNORECASE)


@pytest.mark.parametrize(
    "text", ["it bears", "mended", "a misfit", "go on", "it went on", "astray", "passed over it", "a draft", "sealed"]
)
def test_a_word_is_found(text: str) -> None:
    assert any(pattern_of(word).search(text) for word in WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_the_fields_words_are_used(word: str) -> None:
    pattern = pattern_of(word)
    found = [
        f"{file}:{number}: {line.strip()}"
        for file in files()
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line) and "the job goes on without it" not in line
    ]
    assert found == [], f"say {WORDS[word]}"


# Words with which no sentence begins that stands alone.
LEANING = {
    "Of",
    "By",
    "Those",
    "What",
    "As",
    "Its",
    "It",
    "Which",
    "Where",
    "When",
    "For",
    "From",
    "With",
    "In",
    "On",
    "At",
}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for part in ("runner", "workloads", "mpi_scripts")
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and (text := ast.get_docstring(node))
        and (text.split()[0] in LEANING or text.startswith("The same"))
    ]
    assert found == []
