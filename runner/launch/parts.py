"""The parts of an MPMD launch (``mpirun -np 1 A : -np 1 B``) on this host, which could not meet if these options differed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from itertools import pairwise

from runner.base.errors import UsageError

_OF_MEETING = ("--rendezvous", "--launcher", "--restart-in-place")


_JOB = (b"PMIX_NAMESPACE", b"SLURM_STEP_ID")  # one daemon may have started several jobs


def refuse_other_parts(parent: int, own: Sequence[str], environment: Mapping[str, str]) -> None:
    """Compare the runner's options of the processes that the launcher's process has started here for this job with this one's.

    Raises:
        UsageError: they differ in one by which ranks meet.
    """
    job = [os.fsencode(environment.get(os.fsdecode(name), "")) for name in _JOB]
    for words in _other_command_lines(parent, job):
        for option in _OF_MEETING:
            here, there = _value(option, own), _value(option, words)
            if here != there:
                raise UsageError(
                    f"the parts of this launch differ in {option}: {here or 'not given'} here, {there or 'not given'} in another part",
                    fix="give all parts the same options of the runner",
                )


def _other_command_lines(parent: int, job: list[bytes]) -> Iterator[list[str]]:
    """Return the words after ``-m runner`` of the processes of the same parent and job."""
    seen = set[tuple[bytes, ...]]()
    for file in glob(f"/proc/{parent}/task/*/children"):
        with contextlib.suppress(OSError), open(file, encoding="ascii") as children:
            for child in children.read().split():
                with contextlib.suppress(OSError):
                    variables = dict(line.partition(b"=")[::2] for line in _read(child, "environ"))
                    if [variables.get(name, b"") for name in _JOB] == job:
                        seen.add(tuple(_read(child, "cmdline")))
    for line in seen:
        words = [os.fsdecode(word) for word in line]
        for number, pair in enumerate(pairwise(words)):
            if pair == ("-m", "runner"):
                yield words[number + 2 :]
                break


def _read(process: str, file: str) -> list[bytes]:
    with open(f"/proc/{process}/{file}", "rb") as opened:
        return opened.read().split(b"\0")


def _value(option: str, words: Sequence[str]) -> str:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == option or word.startswith(f"{option}="):
            return after if word == option else word.partition("=")[2]
    return ""
