"""The listings of a page: files for the reader to save, and commands with what they print.

``python -m tests.listings`` (``make pages``) runs the pages of docs/start and docs/courses, and writes anew what their commands print.

A ``console`` listing has commands, after ``$``, each with what it prints. It is run as it stands, in a folder that has the
page's files, those with a caption. A ``bash`` listing is not run: it needs a cluster, GPUs, root or a reader's own files.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.launching import mpirun_path, run
from tests.pages import DOCS
from tests.polling import LIMIT

_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"^:([\w-]+): *(.*)\n", re.MULTILINE)
HOST = "laptop"  # in the pages; any host's name in what is printed
_NUMBER = r"\d+(?:[.:,-]\d+)*(?:e[+-]?\d+)?"  # a list of cores, too: 0-1,4
_VARIES = re.compile(rf"(…|\s+|\b{HOST}\b|{_NUMBER})")


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

    def printed_anew(self, output: str) -> list[str]:
        """What the page shows, with the numbers of the output: of lines that are alike, those of the one with most of the same."""
        lines = [line.strip() for line in output.splitlines()]
        found = []
        for one in self.printed:
            if one == "…":
                found.append(one)
                continue
            alike = [(line, match) for line in lines if (match := _pattern(one).fullmatch(line))]
            old = _VARIES.split(one)[1::2]
            line, match = max(alike, key=lambda pair: sum(map(str.__eq__, old, pair[1].groups())))
            lines.remove(line)
            found.append(_filled(one, match.groups()))
        return found


def run_page(page: Path, folder: Path) -> Iterator[tuple[Command, int, str]]:
    """Run a page's commands in a folder. Yields each with its exit code, and with what it prints below its own line."""
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(mpirun_path()).parent), os.environ["PATH"]])
    for one in listings(page):
        if isinstance(one, File):
            (folder / one.name).write_text(one.text, encoding="utf-8")
            continue
        done = run(
            "bash", "-c", one.line, cwd=folder, timeout=2 * LIMIT, PATH=path, COLUMNS="200", MPIRUN=mpirun_path()
        )
        yield one, done.returncode, f"$ {one.line}\n{done.stdout}\n{done.stderr}"


def write_anew(page: Path) -> list[str]:
    """Write a page's outputs anew. Returns what it shows and its commands do not print: then it is left as it is."""
    printed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for command, _, output in run_page(page, Path(folder)):
            if missing := command.missing(output):
                return [*missing, output]
            printed += command.printed_anew(output)
    text, new = page.read_text(encoding="utf-8"), iter(printed)
    page.write_text(_FENCE.sub(lambda found: _listing_anew(found, new), text), encoding="utf-8")
    return []


def _listing_anew(found: re.Match[str], new: Iterator[str]) -> str:
    if found["kind"].strip() != "console":
        return found[0]
    lines, is_command = [], False
    for line in found["text"].splitlines():
        is_command = line.startswith("$ ") or (is_command and lines[-1].endswith("\\"))
        own = line if is_command or not line.strip() else next(new)
        lines.append(own if own == line else " " * (len(line) - len(line.lstrip())) + own)
    return "\n".join(["```console", *lines, "```"])


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


def _filled(line: str, values: Sequence[str]) -> str:
    """A line with other numbers. Columns keep their width, … and the host stay, and a number before … is as long as it was."""
    parts = _VARIES.split(line)
    for place, value in zip(range(1, len(parts), 2), values, strict=True):
        old = parts[place]
        if not old[0].isdigit():
            continue
        parts[place] = value[: len(old)] if parts[place + 1 : place + 3] == ["", "…"] else value
        if place > 1 and len(parts[place - 2]) > 2 and parts[place - 2].isspace() and not parts[place - 1]:
            parts[place - 2] = " " * max(2, len(parts[place - 2]) + len(old) - len(value))
    return "".join(parts)


def _pattern(line: str) -> re.Pattern[str]:
    """Of a line that is like this one, with a group for each part that varies."""
    of = {"…": ".*", HOST: r"\S+"}
    patterns = []
    for index, part in enumerate(_VARIES.split(line)):
        varying = of.get(part) or (r"\s+" if part.isspace() else _NUMBER)
        patterns.append(f"({varying})" if index % 2 else re.escape(part))
    return re.compile("".join(patterns))


def main() -> int:
    """Write the pages of docs/start and docs/courses anew; those that are named, or all."""
    pages = sys.argv[1:] or [
        str(page) for folder in ("start", "courses") for page in sorted((DOCS / folder).glob("*.md"))
    ]
    untrue = {page: found for page in pages if (found := write_anew(Path(page)))}
    for page, found in untrue.items():
        print(page, "shows what is not printed:", *found, sep="\n")
    return 1 if untrue else 0


if __name__ == "__main__":
    sys.exit(main())
