"""Tests that gloo passes and mpi4py cannot: name → why, in one line. One that passes on every MPI must go from here."""

from __future__ import annotations

LEFT_OUT: dict[str, str] = {}
