"""The parser of every command line: one-line errors, hints at what was meant, help printed by one rank."""

from __future__ import annotations

import argparse
import itertools
import os
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from runner.base.command_name import AS_MODULE, COMMAND
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.launch.detect import is_reporting


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs; indented lines are examples and stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.strip().replace("``", "").splitlines()
        filled: list[str] = []
        for is_prose, part in itertools.groupby(lines, lambda line: bool(line) and not line.startswith(" ")):
            block = list(part)
            filled += textwrap.wrap(" ".join(block), width - len(indent)) if is_prose else block
        return textwrap.indent("\n".join(filled), indent)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help is printed by one rank.

    Texts say ``python -m runner``; what is printed has the command in its place by which the runner was started.
    Options cannot be abbreviated: a workload's own option must not match the beginning of one of the runner's.

    Attributes:
        is_for_host: one process parses for all ranks of a host, and sees itself that help is printed once.
    """

    is_for_host = False

    def __init__(self, **options: Any) -> None:
        ours: dict[str, Any] = {"formatter_class": _Formatter, "allow_abbrev": False}
        super().__init__(**(ours | options))
        self.prog = self.prog.replace(AS_MODULE, COMMAND)

    def error(self, message: str) -> NoReturn:
        with raised_on_all_ranks():  # all ranks have the same arguments
            raise UsageError(f"{message}{self._meant(message)} (see {self.prog} --help)")

    def _meant(self, message: str) -> str:
        """A hint at the options that unknown ones were meant to be, "" if none is similar."""
        import difflib

        _, is_unknown, words = message.partition("unrecognized arguments: ")
        given = [word.partition("=")[0] for word in words.split() if is_unknown and word.startswith("--")]
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        near = [difflib.get_close_matches(option, known, n=1, cutoff=0.75) for option in given]
        found = dict.fromkeys(match for matches in near for match in matches)
        return f"; did you mean {' and '.join(found)}?" if found else ""

    def format_help(self) -> str:
        if self.usage is None:  # argparse's own names every option
            names = [one.metavar or one.dest for one in self._actions if not one.option_strings]
            self.usage = " ".join(["%(prog)s [options]", *map(str, names)])
        return super().format_help().replace(AS_MODULE, COMMAND)

    def print_help(self, file: Any = None) -> None:
        if self.is_for_host or is_reporting(os.environ):
            super().print_help(file)


def wants(words: Iterable[str], *options: str) -> bool:
    """Whether one of these options is among the words before a ``--``."""
    before = itertools.takewhile(lambda word: word != "--", words)
    return any(word in options for word in before)


ALL = "--help-all"


def add_full_help(parser: Parser) -> None:
    """Add ``--help-all``. What it shows is decided when the options are added: ``wants(words, ALL)``."""
    parser.add_argument(ALL, action="help", default=argparse.SUPPRESS, help="show all options and exit")
