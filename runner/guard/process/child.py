"""A worker process as the agent sees it: its pipes, and what the importer tells of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import IO, Any

from runner.guard.hang.stacks import new_file
from runner.guard.process.group import Group
from runner.guard.report.board import Board


@dataclass(kw_only=True)
class Child:
    """Made before it is forked.

    Attributes:
        process: 0 until it is forked.
        status: as waitpid() returns it; None until it has ended.
        problem: why it could not be forked, or ended with the importer.
        cancel: has the agent forget it.
        withdraw: the same, if the importer was not asked for it yet; returns whether that is so.
        messages: the pipe from its lifeline.
        requests: the pipe on which it is asked.
        answers: to what it is asked.
        given: descriptors for the worker, until it has them.
        ignored: signals that the worker ignores from its start.
    """

    group: Group
    messages: int
    board: Board
    stacks: IO[Any]
    answers: IO[Any]
    requests: int
    given: list[int]
    wake: Callable[[], None]
    importer: Callable[[], tuple[int, IO[Any]]]
    process: int = 0
    status: int | None = None
    problem: str = ""
    cancel: Callable[[], None] = lambda: None
    withdraw: Callable[[], bool] = lambda: False
    ignored: Collection[int] = ()

    @property
    def shown(self) -> tuple[int, IO[Any]]:
        """The process whose stack tells where the worker is, and the file for it: the importer while that imports."""
        return (self.process, self.stacks) if self.process else self.importer()

    def end_unasked(self, number: int) -> bool:
        """End it by a signal while the importer imports, which may take long. Returns whether it does; else it is about to be forked."""
        if not self.withdraw():
            return False
        self.status = number
        self.wake()
        return True

    def close(self) -> None:
        """Close the agent's ends, after it has ended, or where it is not to be forked any more."""
        self.cancel()
        self.give()
        os.close(self.messages)
        os.close(self.requests)
        self.stacks.close()
        self.answers.close()

    def give(self) -> None:
        """The worker has its descriptors."""
        for number in self.given:
            os.close(number)
        self.given = []


def new_child(
    *, leads: bool, wake: Callable[[], None], importer: Callable[[], tuple[int, IO[Any]]], ignored: Collection[int] = ()
) -> Child:
    """The pipes and files of a worker that is to be forked.

    Raises:
        OSError: too many files are open.
    """
    with contextlib.ExitStack() as opened:  # closed where there is no room for all of it
        board = Board()
        opened.callback(os.close, board.file)
        messages, pipe = _pipe(opened)
        asked, requests = _pipe(opened)
        stacks, answers = opened.enter_context(new_file()), opened.enter_context(new_file())
        opened.pop_all()
    os.set_blocking(requests, False)  # a worker that reads no more does not hold the agent up
    return Child(
        group=Group(is_own=leads),
        messages=messages,
        board=board,
        stacks=stacks,
        answers=answers,
        requests=requests,
        given=[pipe, asked, board.file],
        wake=wake,
        importer=importer,
        ignored=ignored,
    )


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends
