"""The runner without its agent: the worker is the process that was started. The arguments are the runner's."""

import os
import sys
from typing import Any

from runner import cli
from runner.guard.process.lifeline import Lifeline
from runner.guard.report.board import Board
from runner.starting.launch import Launch


def start_alone(_: Any) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    Launch(sys.argv[1:]).work(
        Lifeline(nothing, Board(), asked=nothing, answers=open(os.devnull, "w"), origin=os.getpid())
    )


cli.start = start_alone
cli.main()
