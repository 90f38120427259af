"""PyTorch's own tests of a backend, as its wheel brings them: torch.testing._internal.distributed.distributed_test.

They are written to be run in processes that each test spawns; here the ranks are MPI's and run one after the other, so
``run`` does what ``TestDistBackend._run`` and ``MultiProcessTestCase.run_test`` do in such a process.
"""

from __future__ import annotations

import importlib
import os
import unittest
from pathlib import Path
from typing import Any

# Before any group is there: its functions take the group of this moment for their default (torch 2.14), and with none
# that is the group of the moment of the call.
import torch.distributed.nn  # noqa: F401  (for what its import does)

from tests.campaigns.conformance.group import BACKEND, environment_kept, group

# Read when the module is imported: the tests that need a file for their rendezvous look at the beginning of INIT_METHOD.
os.environ.update(BACKEND=BACKEND, INIT_METHOD="file://")
os.environ.setdefault("WORLD_SIZE", "3")

# Any: they are untyped, and by name as mypy has no need of them.
common_utils: Any = importlib.import_module("torch.testing._internal.common_utils")
common: Any = importlib.import_module("torch.testing._internal.common_distributed")
theirs: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")

_SEED = 1234  # the default of torch's tests; before 2.10 it has to be given
_SKIPS = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}


# (torch's module has no types.)
class Tests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The class that torch's test/distributed/test_distributed_spawn.py makes."""


def names() -> list[str]:
    return unittest.TestLoader().getTestCaseNames(Tests)


def limit(name: str, usual: float) -> float:
    """Seconds for a test: the usual number, or as long as its operations may take where torch gives them longer."""
    return max(usual, float(theirs.CUSTOM_PG_TIMEOUT.get(name, 0)))


def run(name: str, rank: int, folder: Path) -> None:
    """Run one test on this rank.

    Raises:
        unittest.SkipTest: it is not for this machine.
        Exception: it has failed.
    """
    case = Tests(name)
    test = getattr(case, name)
    if getattr(test, "__unittest_skip__", False):
        raise unittest.SkipTest(test.__unittest_skip_why__)
    case.rank, case.file_name = rank, str(folder / "group")
    with environment_kept():
        os.environ["TEMP_DIR"] = str(folder)
        theirs.INIT_METHOD = f"file://{folder / 'second-group'}"
        theirs.Barrier.barrier_id = 0
        timeout = theirs.CUSTOM_PG_TIMEOUT.get(name, theirs.default_pg_timeout)
        with group(folder / "group", timeout, case._barrier):
            common_utils.set_rng_seed(_SEED)
            try:
                test()
            except SystemExit as leaving:  # how most of torch's decorators skip
                if leaving.code not in _SKIPS:
                    raise
                raise unittest.SkipTest(_SKIPS[leaving.code]) from None
