"""A workload that runs others one after the other, in one job: ``in_turn WORKLOAD [ARGUMENTS…] then WORKLOAD …``."""

import importlib
from dataclasses import replace
from itertools import groupby

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    for is_between, words in groupby(argv, lambda word: word == "then"):
        if not is_between:
            name, *arguments = words
            importlib.import_module(name).main(replace(run, workload=name), arguments)
