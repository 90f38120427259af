"""What a test came to: on one rank, written to a file for the others to see, and of all ranks together."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: str  # PASSED, FAILED or SKIPPED
    reason: str = ""  # one line: of a failure, or why it was skipped
    text: str = ""  # of a failure: tracebacks
    seconds: float = 0.0  # from the start of the test to its end
    ended: float = 0.0  # seconds since the epoch: of several failures the first is the cause


Outcomes = dict[str, Outcome]  # by the names of tests


def write(folder: Path, rank: int, outcome: Outcome) -> None:
    """Leave one rank's outcome in the test's folder, whole or not at all."""
    path = folder / f"rank-{rank}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(outcome)))
    part.rename(path)


def read(folder: Path) -> dict[int, Outcome]:
    """The outcomes that are there, by rank."""
    return {
        int(path.stem.rpartition("-")[2]): Outcome(**json.loads(path.read_text()))
        for path in folder.glob("rank-*.json")
    }


def merged(found: dict[int, Outcome]) -> Outcome:
    """The outcome of all ranks: the first failure if there is one, else rank 0's, as torch's own tests have it."""
    seconds = max(outcome.seconds for outcome in found.values())
    failures = {rank: outcome for rank, outcome in found.items() if outcome.status == FAILED}
    if not failures:
        return Outcome(status=found[0].status, reason=found[0].reason, seconds=seconds)
    rank, first = min(failures.items(), key=lambda item: item[1].ended)
    text = sections([(f"rank {rank}", outcome.text) for rank, outcome in sorted(failures.items())])
    return Outcome(status=FAILED, reason=f"rank {rank}: {first.reason}", text=text, seconds=seconds, ended=first.ended)


def failure(reason: str, seconds: float, parts: Sequence[tuple[str, str]] = ()) -> Outcome:
    """A failure that no rank could tell of; the parts are (title, text) of what else is known."""
    return Outcome(status=FAILED, reason=reason, text=sections(parts), seconds=seconds, ended=time.time())


def sections(parts: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"== {title}\n{text.rstrip()}\n" for title, text in parts if text.strip())
