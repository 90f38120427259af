"""``python -m runner report DIR...``: write a page about a run, or about several whose curves lie over one another.

    python -m runner report runs/mnist             writes runs/mnist/report.html
    python -m runner report runs/mnist --output m.html
    python -m runner report runs/a runs/b          writes ./report.html

DIR is the --checkpoint-dir of a run, its --log-dir, or supervise's; each leads to the other while both are where they were. One
HTML file, which needs no network, has curves of the training, throughput, the parts of a step, a map of which rank is late and when,
checkpoints, restarts and failures with their causes, settings, versions and the command. What the run has not written is n/a: give it
--log-dir to have its ranks. The page may be made while the run goes. It needs matplotlib, and no launcher.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import nonempty_path, size_text
from runner.job import Job
from runner.options.parsing import Parser
from runner.versions.extras import require

_NAME = "report.html"


def report(job: Job, argv: list[str]) -> None:
    """Write the page, and print where it is.

    Raises:
        UsageError: a folder does not exist or holds no run, the page cannot be written, or matplotlib is missing.
    """
    del job
    parser = Parser(prog="python -m runner report", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="DIR", type=nonempty_path, help="folder of a run")
    parser.add_argument(
        "--output",
        type=nonempty_path,
        metavar="FILE",
        help=f"page to write (default: {_NAME} in DIR; of several runs: here)",
    )
    given = parser.parse_args(argv)
    require("matplotlib", needed_by="report")
    from runner.tools.report.folder import read_run
    from runner.tools.report.page import page_of

    runs = [read_run(folder) for folder in given.folders]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(folder)) for run, folder in zip(runs, given.folders, strict=True)]
    output: Path = given.output or (Path(_NAME) if len(runs) > 1 else given.folders[0] / _NAME)
    text = page_of(runs, time.time())
    _write(output, text)
    print(f"report: {output} ({size_text(output.stat().st_size)})")


def _write(path: Path, text: str) -> None:
    """Replace the page as a whole. Somebody may read the last one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}", fix="name another file with --output") from None
