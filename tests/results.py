"""What a job has left: the metrics of a training, the hosts that it ran on, the line by which it was refused."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.launching import own_lines
from tests.polling import LIMIT, poll_until


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a checkpoint folder's metrics.jsonl, which hold no NaN: that is no JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def losses(folder: Path) -> list[float]:
    """The loss of each step, as a checkpoint folder's metrics.jsonl has it."""
    return [line["loss"] for line in metrics(folder)]


def json_object(text: str) -> dict[str, Any]:
    """The object that a tool has printed; a launcher may have had a word before or after it."""
    found: dict[str, Any]
    found, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    return found


def hosts(found: dict[str, Any]) -> dict[str, list[int]]:
    """The ranks on each host, from what ``explain --json`` has found."""
    return {host["name"]: host["ranks"] for host in found["hosts"]}


def refused(done: subprocess.CompletedProcess[str], *texts: str, code: int = 2) -> None:
    """Assert one line with these texts, this exit code, and no traceback."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = own_lines(done)
    assert len(lines) == 1, done.stderr
    for text in texts:
        assert text in lines[0]
    assert "Traceback" not in done.stderr


def wait_for_phase(process: subprocess.Popen[Any], folder: Path, rank: int, phase: str) -> dict[str, Any]:
    """A rank's state, once it is in this phase."""

    def state() -> dict[str, Any] | None:
        with suppress(FileNotFoundError, ValueError):
            found: dict[str, Any] = json.loads((folder / "state" / f"rank-{rank:05d}.json").read_text())
            return found if found["phase"] == phase else None
        return None

    found = poll_until(state, LIMIT, f"rank {rank} is {phase}", process)
    assert found is not None
    return found
