"""Loading a workload for a tool that runs its ``main``."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from runner.errors import UsageError, raised_on_all_ranks
from runner.target import find_target


def load_workload(name: str, tool: str) -> ModuleType:
    """The workload's module, also from the working folder.

    Raises:
        UsageError: there is no workload of that name; the message names the tool.
    """
    sys.path.insert(0, os.getcwd())
    try:
        is_workload = find_target(name, tools=()).kind == "workload"
    except UsageError:
        is_workload = False
    if not is_workload:
        with raised_on_all_ranks():  # not around the import: what that refuses may concern one host
            raise UsageError(
                f"no workload {name}: {tool} takes a module with main(run, argv), for example workloads.mnist"
            )
    return importlib.import_module(name)
