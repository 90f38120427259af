"""Read the files that a run leaves, as plain data. A line that is cut off and a field that is missing or odd are skipped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import EXIT_REQUEUE, UsageError
from runner.guard.report.rank_state import (
    FOLDER,
    SILENT_INTERVALS,
    SILENT_SECONDS,
    RankState,
    path_of,
    path_of_history,
    read_states,
)
from runner.tools.report.ranks import RankTimes, Sample, rank_times

_FIX = "name the --log-dir or the --checkpoint-dir of a run, or supervise's --log-dir"
_RUN, _METRICS, _SETTINGS, _ATTEMPTS = "run.json", "metrics.jsonl", "settings.toml", "attempts.jsonl"
_NO_CURVES = ("format", "step", "epoch", "cpu", "memory", "gpu", "gpu_memory")  # fields of metrics.jsonl
_PHASES_WITHOUT_STEPS = ("starting", "evaluating", "saving", "done", "ended")

_MOST = 1e300  # larger numbers have no place on an axis

Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A run. What is not known is empty; times are Unix times."""

    name: str
    places: list[Path]  # the folders that were read
    facts: dict[str, Any] = field(default_factory=dict)  # run.json
    metrics: dict[str, Points] = field(default_factory=dict)  # steps and values by the metric's name
    states: list[RankState] = field(default_factory=list)  # of the newest attempt
    times: RankTimes | None = None  # the ranks' states over time, of all attempts
    failures: list[dict[str, Any]] = field(default_factory=list)  # failure.json and failure-N.json, the oldest first
    attempts: list[dict[str, Any]] = field(default_factory=list)  # starts by supervise
    checkpoints: list[dict[str, Any]] = field(default_factory=list)  # name, size in bytes, time
    given: dict[str, str] = field(default_factory=dict)  # settings that differ from their defaults
    defaults: dict[str, str] = field(default_factory=dict)  # the other settings

    def status(self, now: float) -> tuple[str, str]:
        """Return running, done, saved, failed, silent or unknown, and a few words about it."""
        if not self.states:
            return "unknown", "give --log-dir to have the end of a run recorded"
        codes = [one.exit_code for one in self.states if one.has_ended]
        failed = [one for one in self.states if one.exit_code not in (None, 0, EXIT_REQUEUE)]
        if failed:
            first = next((one for one in failed if one.what), failed[0])
            return "failed", f"rank {first.rank} with exit code {first.exit_code}"
        if len(codes) == len(self.states):
            return ("saved", "ended early; start the run again") if EXIT_REQUEUE in codes else ("done", "")
        newest = max((one.time or 0.0 for one in self.states), default=0.0)
        interval = max(one.interval or 0.0 for one in self.states)
        if now - newest > max(SILENT_SECONDS, SILENT_INTERVALS * interval):
            return "silent", "the ranks stopped to write their states, and wrote no end"
        return "running", "make this page again for newer numbers"


def read_run(folder: Path) -> RunFolder:
    """Read a run's log folder or checkpoint folder, and the other one that its ``run.json`` names.

    Raises:
        UsageError: the folder does not exist, or holds no run.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", fix=_FIX)
    logs, checkpoints = _log_folders(folder), folder if _holds_training(folder) else None
    if not logs and checkpoints is None and not (folder / _RUN).is_file():
        raise UsageError(f"{folder} holds no run", fix=_FIX)
    facts = _object(folder / _RUN) or next(filter(None, (_object(log / _RUN) for log in reversed(logs))), {})
    if checkpoints is None:
        checkpoints = _other(facts.get("checkpoints"), "log_dir", logs)
    elif not logs and (log := _other(facts.get("log_dir"), "checkpoints", [folder])):
        logs = _log_folders(log.parent) or [log] if (log.parent / _ATTEMPTS).is_file() else [log]
    given, defaults = _settings(checkpoints / _SETTINGS) if checkpoints else ({}, {})
    return RunFolder(
        name="/".join(folder.resolve().parts[-2:]).removeprefix("//"),
        places=list(dict.fromkeys([folder, *logs, *filter(None, [checkpoints])])),
        facts=facts,
        metrics=_metrics(facts, checkpoints or folder),
        states=_states(logs[-1]) if logs else [],
        times=rank_times([history for log in logs for history in _histories(log)]),
        failures=_failures(logs),
        attempts=list(_lines(logs[-1].parent / _ATTEMPTS)) if logs else [],
        checkpoints=_checkpoints(checkpoints) if checkpoints else [],
        given=given,
        defaults=defaults,
    )


def _log_folders(folder: Path) -> list[Path]:
    """Return the folder itself if ranks leave their states in it, or else the folders of supervise's attempts, in order."""
    if (folder / FOLDER).is_dir():
        return [folder]
    numbered = {int(one.name[8:]): one for one in folder.glob("attempt-*") if one.name[8:].isdecimal()}
    return [numbered[number] for number in sorted(numbered) if (numbered[number] / FOLDER).is_dir()]


def _holds_training(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_METRICS, _SETTINGS)) or any(
        folder.glob("step-*/checkpoint.json")
    )


def _other(named: object, back: str, these: list[Path]) -> Path | None:
    """Return the folder that a run.json names if its own run.json names this one. Another run may have taken its place."""
    if not isinstance(named, str) or not Path(named).is_dir():
        return None
    said = _object(Path(named) / _RUN).get(back)
    return Path(named) if said in [str(one.resolve()) for one in these] else None


def _states(log: Path) -> list[RankState]:
    """Return the states of the newest job in a folder. An earlier job may have had more ranks."""
    states = read_states(log)
    newest = max(states, key=lambda one: one.time or 0.0, default=None)
    return [one for one in states if newest is None or newest.size is None or one.rank < newest.size]


def _histories(log: Path) -> Iterator[tuple[int, list[Sample]]]:
    """Yield ranks with their states during one attempt, in the order of time."""
    for state in _states(log):
        lines = sorted(_lines(path_of_history(path_of(log, state.rank))), key=_time)
        samples, last = list[Sample](), 0.0
        for line in lines:
            sample = numbers(line)
            step = sample.get("step", last)
            # A rank that has made steps was training, even if it saves or evaluates at this moment.
            sample["trains"] = float(step != last or line.get("phase") not in _PHASES_WITHOUT_STEPS)
            last = step
            if "time" in sample:
                samples.append(sample)
        if samples:
            yield state.rank, samples


def _time(content: dict[str, Any]) -> float:
    return numbers(content).get("time", math.inf)


def _metrics(facts: dict[str, Any], folder: Path) -> dict[str, Points]:
    path = folder / _METRICS
    if not path.is_file() and isinstance(named := facts.get("metrics"), str):
        path = Path(named)
    found: dict[str, dict[float, float]] = {}
    for line in _lines(path):
        known = numbers(line)
        for name, value in known.items() if "step" in known else ():
            if name not in _NO_CURVES:
                found.setdefault(name, {})[known["step"]] = value  # a later line replaces that of a step made again
    return {name: sorted(values.items()) for name, values in found.items()}


def _failures(logs: list[Path]) -> list[dict[str, Any]]:
    """Return what failed, in the order of time. A numbered file is a failure that a restart in place fixed."""
    paths = [path for log in logs for path in log.glob("failure*.json")]
    found = [_object(path) | {"fixed": path.name != "failure.json"} for path in sorted(paths)]
    return sorted((one for one in found if "what" in one), key=_time)


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    found = []
    for manifest in folder.glob("step-*/checkpoint.json"):
        with suppress(OSError):  # removed meanwhile
            size = sum(one.stat().st_size for one in manifest.parent.iterdir())
            found.append({"name": manifest.parent.name, "size": size, "time": manifest.stat().st_mtime})
    return sorted(found, key=lambda one: (len(one["name"]), one["name"]))


def _settings(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that were given and the defaults, which are comments there. Values stay as they are written."""
    given: dict[str, str] = {}
    defaults: dict[str, str] = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if (found := re.fullmatch(r"(# )?([\w-]+) = (.*)", line)) and found[2] != "format":
                (defaults if found[1] else given)[found[2]] = found[3]
    return given, defaults


def numbers(content: dict[str, Any]) -> dict[str, float]:
    """Return the fields that are finite numbers."""
    return {
        name: float(value)
        for name, value in content.items()
        if type(value) in (int, float) and abs(value) < _MOST  # not for NaN, infinity and booleans
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    yield found


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return found if isinstance(found, dict) else {}
    return {}
