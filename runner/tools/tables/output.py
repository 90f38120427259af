"""The files that a tool is asked to write: checked before the work, written after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.base.errors import UsageError
from runner.versions.extras import require

_PICTURES = (".png", ".svg", ".pdf")


@contextmanager
def libraries_print_on_stderr() -> Iterator[None]:
    """Keep standard output for what is printed after the block: gloo of torch 2.9 says there how many ranks it has connected."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)


def check_output(json: str | None, plot: str | None, **others: str | None) -> None:
    """Check that --json, --plot and others can be written.

    Raises:
        UsageError: a path is empty, a folder does not exist or is not writable, matplotlib is missing, or the image format is unknown.
    """
    files = {"--json": json, "--plot": plot, **{f"--{name}": path for name, path in others.items()}}
    for option, path in files.items():
        if path == "":  # of a variable that is not set
            raise UsageError(f"{option}: the path is empty", fix="name a file")
    if plot:
        require("matplotlib", needed_by="--plot")
    if plot and Path(plot).suffix not in _PICTURES:
        raise UsageError(
            f"--plot {plot}: the name ends in {', '.join(_PICTURES)}", fix=f"for example {Path(plot).stem}.png"
        )
    for option, path in files.items():
        if path and (os.path.isdir(path) or not os.access(Path(path).resolve().parent, os.W_OK)):
            raise UsageError(f"{option}: cannot write in {Path(path).parent}", fix="name another file")
