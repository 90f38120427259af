"""What a logger is, and what it is told of the run whose values it gets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.base.formats import check_format

_FORMAT = 1  # of the file of identifiers
_IDENTIFIERS = "loggers.json"  # beside the checkpoints


class Logger(Protocol):
    """Takes a run's values, on rank 0, in a thread of its own. One that raises an error gets no more values.

    One that does not take all names has a function ``name_of(name)``, too, which gives the one to be used.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of an optimizer step, the first of which is 1. A loss may be NaN or infinite."""

    def close(self) -> None:
        """The run has ended: write what is not written yet."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """What a logger is made of.

    Attributes:
        logger: as it was chosen: ``NAME`` or ``NAME:TARGET``.
        target: what follows the name; if nothing does, the path that the table gives, in ``folder``, or "".
        folder: of the run's checkpoints.
        workload: its name, such as ``mnist``.
        settings: by name; numbers, texts, booleans and None.
        step: the step of this folder's run that is continued; 0 if this is a new one.
    """

    logger: str
    target: str
    folder: Path
    workload: str
    settings: Mapping[str, Any]
    step: int = 0

    @property
    def name(self) -> str:
        """Of the run."""
        return self.folder.name or self.workload

    def identifier(self, make: Callable[[], str]) -> str:
        """What a service knows the run by: that of the run that is continued, or a new one, which is kept beside the checkpoints.

        Raises:
            UsageError: a later runner has written the file.
            OSError: it cannot be read or written.
        """
        path = self.folder / _IDENTIFIERS
        known: dict[str, str] = {}
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            check_format(path, content.get("format"), _FORMAT)
            known = content["runs"]
        if not (self.step and self.logger in known):
            known[self.logger] = make()
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_text(json.dumps({"format": _FORMAT, "runs": known}, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        return known[self.logger]
