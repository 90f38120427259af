"""The project's Python files, each parsed once per process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.launching import ROOT

FILES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in ("runner", "workloads", "mpi_scripts")}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
