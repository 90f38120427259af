"""Hydra, the launcher of MPICH and Intel MPI: how a rank that fails before MPI_Init() ends the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress


def end_other_ranks(environment: Mapping[str, str], code: int) -> None:
    """Ask Hydra to end the job with this exit code. Call it only before MPI is initialised.

    It ends a job by itself if a rank fails that has called MPI_Init(); the others would wait for one that has not. The request
    is PMI-1's ("cmd=abort"; MPICH, src/pm/hydra/proxy). Under other launchers nothing is done.
    """
    with suppress(OSError, ValueError, KeyError):
        os.write(int(environment["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())
