"""The listings of a page: files for the reader to save, and commands with what they print.

A ``console`` listing has commands, after ``$``, each with what it prints. It is run as it stands, in a folder that has the
page's files, those with a caption. A ``bash`` listing is not run: it needs a cluster, GPUs, root or a reader's own files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"^:([\w-]+): *(.*)\n", re.MULTILINE)
HOST = "laptop"  # in the pages; any host's name in what is printed
_VARIES = re.compile(rf"(…|\s+|\b{HOST}\b|\d+(?:[.:]\d+)*(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class File:
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    line: str
    printed: list[str]

    @property
    def is_refused(self) -> bool:
        """Whether the page shows that it fails: by a line of the runner."""
        return any(line.startswith("runner:") for line in self.printed)

    def missing(self, output: str) -> list[str]:
        """What the page shows and the output lacks. Numbers, and the order of lines, may be others; … is any text."""
        lines = [line.strip() for line in output.splitlines()]
        return [one for one in self.printed if not any(_pattern(one).fullmatch(line) for line in lines)]


def listings(page: Path) -> Iterator[File | Command]:
    """In the page's order."""
    for found in _FENCE.finditer(page.read_text(encoding="utf-8")):
        kind, text = found["kind"].strip(), found["text"]
        options = dict(_OPTION.findall(text))
        if kind == "console":
            yield from _commands(text)
        elif kind.startswith("{literalinclude}"):
            included = page.parent / kind.partition("}")[2].strip()
            yield File(options.get("caption", included.name), included.read_text(encoding="utf-8"))
        elif "caption" in options:
            yield File(options["caption"], _OPTION.sub("", text).lstrip("\n"))


def _commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, *printed = part.splitlines()
        yield Command(line, [one.strip() for one in printed if one.strip()])


def _pattern(line: str) -> re.Pattern[str]:
    """Of a line that is like this one."""
    of = {"…": r".*", HOST: r"\S+"}
    parts = _VARIES.split(line)
    patterns = [
        re.escape(part)
        if not index % 2
        else of.get(part) or (r"\s+" if part.isspace() else r"\d+(?:[.:]\d+)*(?:e[+-]?\d+)?")
        for index, part in enumerate(parts)
    ]
    return re.compile("".join(patterns))
