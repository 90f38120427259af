"""The command by which the runner was started, as help and messages name it."""

from __future__ import annotations

import os
import sys

AS_MODULE = "python -m runner"
SCRIPT = "torch-mpi-runner"  # the console script
MODULES = ("runner", "mpi_scripts.console")  # for python -m; the second is the console script's

COMMAND = SCRIPT if os.path.basename(sys.argv[0]) in (SCRIPT, "console.py") else AS_MODULE
