"""The attempts of a job as a table."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from runner.base.errors import UsageError
from runner.tools.supervise.attempts import read_attempts


def print_report(log: Path) -> None:
    from rich.table import Table

    from runner.tools.tables.table import console

    try:
        attempts = read_attempts(log)
    except OSError as error:
        raise UsageError(f"--report: cannot read {log}: {error.strerror}", fix="name supervise's --log-dir") from None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "began", "seconds", "code", "step", "cause", "then"):
        table.add_column(title, justify="right" if title in ("attempt", "seconds", "code", "step") else "left")
    for one in attempts:
        cause = "" if one.rank is None else f"rank {one.rank} on {one.host}: {one.what}"
        began = datetime.fromtimestamp(one.began).strftime("%m-%d %H:%M:%S")
        step = "" if one.step is None else str(one.step)
        table.add_row(str(one.number), began, f"{one.seconds:.1f}", str(one.code), step, cause, one.next)
    console().print(table)
