"""What a run has left in its folders, as plain data. Files of other versions lack fields, and a line may be cut off: what can be read counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.guard.history import path_of_history
from runner.guard.rank_state import FOLDER, RankState, path_of, read_states

_FIX = "name the --log-dir or the --checkpoint-dir of a run, or supervise's --log-dir"
_RUN, _METRICS, _SETTINGS, _ATTEMPTS = "run.json", "metrics.jsonl", "settings.toml", "attempts.jsonl"
_NO_CURVES = ("format", "step", "cpu", "memory", "gpu", "gpu_memory")  # of a line of metrics
_SILENT_SECONDS, _SILENT_INTERVALS = 10.0, 3  # without a new state, after which a rank no longer runs, as for `top`
_SAVED = 75  # the exit code of a run that has saved and ended early

# Phases that a rank may be in for long without a step.
_OTHER_PHASES = ("starting", "evaluating", "saving", "done", "ended")

Sample = dict[str, Any]  # a line of a rank's history: numbers, its phase, and whether it trains


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """A checkpoint that is there."""

    name: str
    epoch: int | None
    step: int | None
    size: int  # bytes
    time: float


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A run as its folders have it. What is not known is empty or None; times are Unix times."""

    name: str
    places: list[Path]  # that were read
    facts: dict[str, Any] = field(default_factory=dict)  # of run.json
    metrics: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by name: step and value
    states: list[RankState] = field(default_factory=list)  # of the newest attempt
    histories: dict[int, list[Sample]] = field(default_factory=dict)  # by rank, of all attempts
    failures: list[dict[str, Any]] = field(default_factory=list)  # of failure.json and failure-N.json, the oldest first
    attempts: list[dict[str, Any]] = field(default_factory=list)  # of supervise
    checkpoints: list[SavedStep] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)  # settings other than the defaults
    defaults: dict[str, str] = field(default_factory=dict)
    traces: list[dict[str, float]] = field(default_factory=list)  # what the time of profiled steps went into, by rank

    def status(self, now: float) -> tuple[str, str]:
        """One of running, done, saved, failed, silent, unknown; and a few words about it."""
        if not self.states:
            return "unknown", "how it ended is written with --log-dir"
        codes = [one.exit_code for one in self.states if one.has_ended]
        failed = [one for one in self.states if one.exit_code not in (None, 0, _SAVED)]
        if failed:
            first = next((one for one in failed if one.what), failed[0])
            return "failed", f"rank {first.rank} with code {first.exit_code}"
        if len(codes) == len(self.states):
            return ("saved", "ended early; start it again") if _SAVED in codes else ("done", "")
        newest = max((one.time or 0.0 for one in self.states), default=0.0)
        interval = max(one.interval or 0.0 for one in self.states)
        if now - newest > max(_SILENT_SECONDS, _SILENT_INTERVALS * interval):
            return "silent", "its ranks stopped to write, without an end"
        return "running", "this page is of now; make it again for a newer one"


def read_run(folder: Path) -> RunFolder:
    """Read a run's folder, and the other one that it names: that of the log or that of the checkpoints.

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
    states = _states(logs[-1]) if logs else []
    given, defaults = _settings(checkpoints / _SETTINGS) if checkpoints else ({}, {})
    return RunFolder(
        name="/".join(folder.resolve().parts[-2:]).removeprefix("//"),
        places=list(dict.fromkeys([folder, *logs, *filter(None, [checkpoints])])),
        facts=facts,
        metrics=_metrics(facts, checkpoints or folder),
        states=states,
        histories=_histories(logs, len(states)),
        failures=_failures(logs),
        attempts=list(_lines(logs[-1].parent / _ATTEMPTS)) if logs else [],
        checkpoints=_checkpoints(checkpoints) if checkpoints else [],
        given=given,
        defaults=defaults,
        traces=_traces(checkpoints / "profile" / "shares.json") if checkpoints else [],
    )


def _log_folders(folder: Path) -> list[Path]:
    """The folder itself if ranks leave their states in it; or those of supervise's attempts, in their order."""
    if (folder / FOLDER).is_dir():
        return [folder]
    numbered = {int(one.name[8:]): one for one in folder.glob("attempt-*") if one.name[8:].isdecimal()}
    return [numbered[number] for number in sorted(numbered) if (numbered[number] / FOLDER).is_dir()]


def _holds_training(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_METRICS, _SETTINGS)) or any(
        folder.glob("step-*/checkpoint.json")
    )


def _other(named: object, back: str, these: list[Path]) -> Path | None:
    """The folder that a run.json names, unless it is not here or another run's by now: its own run.json names another folder."""
    if not isinstance(named, str) or not Path(named).is_dir():
        return None
    said = _object(Path(named) / _RUN).get(back)
    return Path(named) if said in [str(one.resolve()) for one in these] else None


def _states(log: Path) -> list[RankState]:
    """Of the newest job in a folder: an earlier one may have had more ranks."""
    states = read_states(log)
    newest = max(states, key=lambda one: one.time or 0.0, default=None)
    return [one for one in states if newest is None or newest.size is None or one.rank < newest.size]


def _histories(logs: list[Path], size: int) -> dict[int, list[Sample]]:
    """By rank, in the order of time."""
    found: dict[int, list[Sample]] = {}
    for attempt, log in enumerate(logs):
        hosts = {state.rank: state.host for state in _states(log)}
        for rank in range(max(size, len(hosts))):
            place = {"attempt": attempt, "host": hosts.get(rank)}
            if samples := _history(path_of_history(path_of(log, rank))):
                found.setdefault(rank, []).extend(sample | place for sample in samples)
    return {rank: sorted(samples, key=_time) for rank, samples in sorted(found.items())}


def _history(path: Path) -> list[Sample]:
    """Of a rank in one start of the job."""
    lines: list[Sample] = [_numbers(line) | {"phase": line.get("phase")} for line in _lines(path)]
    samples = sorted((one for one in lines if "time" in one), key=_time)
    last = 0.0
    for sample in samples:
        # A rank that has made steps was training, whatever it does at this moment.
        step = sample.get("step", last)
        sample["trains"] = step != last or sample["phase"] not in _OTHER_PHASES
        last = step
        if sample.get("memory") == 0:  # it had ended, and was not waited for yet
            del sample["memory"]
    return samples


def _time(sample: Sample) -> float:
    return float(sample["time"])


def _metrics(facts: dict[str, Any], folder: Path) -> dict[str, list[tuple[float, float]]]:
    """By name: the steps that have it, and its values."""
    path = folder / _METRICS
    if not path.is_file() and isinstance(named := facts.get("metrics"), str):
        path = Path(named)
    found: dict[str, dict[float, float]] = {}
    for line in _lines(path):
        numbers = _numbers(line)
        for name, value in numbers.items() if "step" in numbers else ():
            if name not in _NO_CURVES:
                found.setdefault(name, {})[numbers["step"]] = (
                    value  # of a step that is there twice the later line counts
                )
    return {name: sorted(values.items()) for name, values in found.items()}


def _failures(logs: list[Path]) -> list[dict[str, Any]]:
    # What a restart in place has fixed has a number.
    paths = [path for log in logs for path in sorted(log.glob("failure*.json"))]
    found = [_object(path) | {"fixed": path.name != "failure.json"} for path in paths]
    return sorted((one for one in found if "what" in one), key=lambda one: _numbers(one).get("time", math.inf))


def _checkpoints(folder: Path) -> list[SavedStep]:
    found = []
    for manifest in folder.glob("step-*/checkpoint.json"):
        with suppress(OSError):
            content = _object(manifest)
            position = content.get("content", content)
            position = position.get("position") if isinstance(position, dict) else None
            numbers = _numbers(position) if isinstance(position, dict) else {}
            named = re.fullmatch(r"step-(\d+)", manifest.parent.name)
            step = numbers.get("step", float(named[1]) if named else None)
            found.append(
                SavedStep(
                    name=manifest.parent.name,
                    epoch=int(numbers["epoch"]) if "epoch" in numbers else None,
                    step=None if step is None else int(step),
                    size=sum(one.stat().st_size for one in manifest.parent.iterdir()),
                    time=manifest.stat().st_mtime,
                )
            )
    return sorted(found, key=lambda one: one.step or 0)


def _settings(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Those that were given, and the defaults, which are comments. The values stay as they are written there."""
    given: dict[str, str] = {}
    defaults: dict[str, str] = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if (found := re.fullmatch(r"(# )?([\w-]+) = (.*)", line)) and found[2] != "format":
                (defaults if found[1] else given)[found[2]] = found[3]
    return given, defaults


def _traces(path: Path) -> list[dict[str, float]]:
    rows = _object(path).get("ranks")
    return [_numbers(one) for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    """What is a finite number in it."""
    found = {}
    for name, value in content.items():
        with suppress(OverflowError):
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[name] = float(value)
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines. A line that is none, such as one that is being written, is left out."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    yield found


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return found if isinstance(found, dict) else {}
    return {}
