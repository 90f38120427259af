"""``--logger csv[:FILE]``: a table of one row for each step; metrics.csv in the folder of the checkpoints."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.training.loggers.logger import LoggedRun
from runner.training.metrics.output import kept_names


class CSVFile:
    """Rows are appended. A value of a new name adds a column, for which the file is written anew.

    A continued run keeps the rows up to its step; the file of another run is kept under another name.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._path = Path(run.target)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._names = ["step"]
        rows: list[dict[str, Any]] = []
        if self._path.exists():
            if run.step:
                rows = [row for row in self._read() if row["step"].isdecimal() and int(row["step"]) <= run.step]
            else:
                os.rename(self._path, kept_names(self._path)[0])
        self._rewrite(rows)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row."""
        if new := [name for name in values if name not in self._names]:
            self._file.close()
            rows = [*self._read()]
            self._names += new
            self._rewrite(rows)
        self._rows.writerow({"step": step, **values})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> list[dict[str, str]]:
        """The rows that are there; their names become the first of this file's."""
        with open(self._path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            self._names = list(rows.fieldnames or ["step"])
            return [row for row in rows if row.get("step")]

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Write the file with these rows, and leave it open for more."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        self._file = open(temporary, "w", newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, self._names, restval="")
        self._rows.writeheader()
        self._rows.writerows(rows)
        self._file.flush()
        os.replace(temporary, self._path)
