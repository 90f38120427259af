"""The command by which the runner was started, as help and messages name it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise

AS_MODULE = "python -m runner"
SCRIPT = "torch-mpi-runner"  # the console script
MODULES = ("runner", "mpi_scripts.console")  # for python -m; the second is the console script's

COMMAND = SCRIPT if os.path.basename(sys.argv[0]) in (SCRIPT, "console.py") else AS_MODULE


def places_in(command: Sequence[str]) -> tuple[int, int] | None:
    """Return where a command's launcher ends, and where the runner's options begin; None if it starts no runner."""
    for place, (word, following) in enumerate(pairwise([*command, ""])):
        if os.path.basename(word) == SCRIPT:
            return place, place + 1
        if word == "-m" and following in MODULES:
            return place, place + 2
    return None
