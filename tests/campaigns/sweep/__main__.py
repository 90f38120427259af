"""``make sweep``: all cases under each strategy, by plan and by compare; writes the table of docs/results/models.md.

python -m tests.campaigns.sweep [--without-compare]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

from tests.campaigns.sweep.cases import CASES
from tests.launching import ROOT, RUNNER, mpirun_path, run
from tests.pages import DOCS, put, table

COLUMNS = ("ddp", "fsdp", "zero1", "plan", "compare")
_JOB, _CASE = 7200, 600  # seconds that all cases of a job, or one case's, may take
_TIMED_OUT = 124  # as timeout(1) ends


def main() -> int:
    columns = [column for column in COLUMNS if column != "compare" or "--without-compare" not in sys.argv]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    reasons: dict[str, None] = {}
    for line in _lines():
        text = line["what"] if line["what"] != "refused" else f"refused ({_number(reasons, line['detail'])})"
        found[line["case"]][line["where"]] = text
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in CASES:
        alike.setdefault(tuple(found[name].setdefault(column, "FAILS (no result)") for column in columns), []).append(
            name
        )
    rows = [["; ".join(names), *cells] for cells, names in alike.items()]
    notes = [f"{number}. `{reason}`" for number, reason in enumerate(reasons, 1)]
    put(DOCS / "results/models.md", "make sweep", "\n".join([*table(("cases", *columns), rows), "", *notes]))
    return any("FAILS" in text for of_case in found.values() for text in of_case.values())


def _number(reasons: dict[str, None], text: str) -> int:
    reasons.setdefault(text)
    return list(reasons).index(text) + 1


def _lines() -> Iterator[dict[str, str]]:
    """What came of each case, where; a job that ended early has none of its last ones."""
    two = [mpirun_path(), "-np", "2", *RUNNER]
    for command in ([*two, "tests.campaigns.sweep.train"], [sys.executable, "-m", "tests.campaigns.sweep.plans"]):
        done = _run(command, _JOB)
        if done.returncode:
            print(f"{command[-1]} ended with exit code {done.returncode}:\n{done.stderr}", file=sys.stderr, flush=True)
        for line in done.stdout.splitlines():
            if line.startswith("case "):
                yield json.loads(line.removeprefix("case "))
    for name in CASES if "--without-compare" not in sys.argv else ():
        engines = ["--engines", "ddp,fsdp,zero1", "--steps", "2", "--rounds", "1", "--batch-size", "8"]
        done = _run([*two, "compare", "tests.campaigns.sweep.cases", "--case", name, *engines], _CASE)
        lines = [line for line in done.stderr.splitlines() if line.startswith("runner: ")]
        if done.returncode == 2 and len(lines) == 1:
            yield {"case": name, "where": "compare", "what": "refused", "detail": lines[0].removeprefix("runner: ")}
        else:
            yield {"case": name, "where": "compare", "what": "FAILS" if done.returncode else "compared", "detail": ""}
        print(name, done.returncode, flush=True)


def _run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command, and end it after so many seconds."""
    try:
        return run(*command, cwd=ROOT, timeout=seconds)
    except TimeoutError as error:  # whose text has what the command printed
        return subprocess.CompletedProcess(command, _TIMED_OUT, str(error), str(error))


if __name__ == "__main__":
    sys.exit(main())
