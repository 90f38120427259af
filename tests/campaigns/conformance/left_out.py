"""Tests that gloo passes and mpi4py cannot: name → why, in one line. One that passes on every MPI must go from here."""

from __future__ import annotations

LEFT_OUT: dict[str, str] = {
    "test_ddp_logging_data_cpu": (
        "expects DDP's log to name the backend gloo; DDP's C++ code takes a backend of that name for gloo itself, so mpi4py keeps its own"
    )
}
