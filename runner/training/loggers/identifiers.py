"""The identifiers by which services know a run, in ``loggers.json`` beside the checkpoints. A resumed run keeps its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from runner.base.formats import check_format
from runner.training.loggers.logger import LoggedRun

_FORMAT = 1  # of the file
_IDENTIFIERS = "loggers.json"


def identifier_of(run: LoggedRun, make: Callable[[], str]) -> str:
    """Return the identifier of the run that continues, or make one for a new run and keep it in the file.

    Raises:
        UsageError: a later runner has written the file.
        OSError: the file cannot be read or written.
    """
    path = run.folder / _IDENTIFIERS
    known: dict[str, str] = {}
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        check_format(path, content.get("format"), _FORMAT)
        known = content["runs"]
    if not (run.step and run.logger in known):
        known[run.logger] = make()
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(json.dumps({"format": _FORMAT, "runs": known}, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    return known[run.logger]
