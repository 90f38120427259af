"""Words that only this project used for what its field has words for, and docstrings that need the code beside them."""

from __future__ import annotations

import ast
import itertools
import re
from functools import cache

import pytest

from tests.launching import ROOT
from tests.sources import FILES, tree

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
LEFT_OUT = ("runner/guard/", "tests/unit/guard/", "tests/launched/guard/", "tests/unit/test_words.py", "docs/results/")
LEFT_OUT += ("tests/data/", "docs/_build/")


@cache
def lines() -> list[tuple[str, str]]:
    """The lines of all files, each after its place."""
    paths = [path for part in PARTS for path in [ROOT / part, *(ROOT / part).rglob("*")] if path.is_file()]
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.suffix in {".py", ".md", ".sh", ".j2"}]
    return [
        (f"{name}:{number}", line)
        for name in names
        if not name.startswith(LEFT_OUT)
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
    ]


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
    found = [one for one in lines() if pattern.search(one[1]) and "the job goes on without it" not in one[1]]
    assert found == [], f"say {WORDS[word]}"


# Words with which no sentence begins that stands alone.
LEANING = {
    *["Of", "By", "Those", "What", "As", "Its", "It", "Which", "Where", "When", "For", "From", "With", "In", "On", "At"]
}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in itertools.chain(*FILES.values())
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and (text := ast.get_docstring(node))
        and (text.split()[0] in LEANING or text.startswith("The same"))
    ]
    assert found == []
