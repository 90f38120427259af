"""The state that a rank leaves in the folder of ``--log-dir``: ``DIR/state/rank-00003.json``, and over time ``rank-00003.jsonl``.

The guard replaces these files every few seconds; ``top``, ``supervise`` and ``report`` read them.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from runner.base.process_stat import process_stat
from runner.guard.process.forks import in_library
from runner.guard.report.board import ENDED, Board
from runner.guard.report.console import Files
from runner.guard.settings import Watched
from runner.hardware.nvml import GpuMeter

FORMAT = 1  # of the file
FOLDER = "state"  # in the folder of a job
# A rank is missing if it has not written its state for so many seconds or intervals, whichever is more.
SILENT_SECONDS = 10.0
SILENT_INTERVALS = 3
_NAME = re.compile(r"rank-(\d+)\.json")
FIELDS = ("time", "phase", "step", "step_seconds", "own_seconds", "data_seconds", "cpu", "memory", "gpu", "gpu_memory")
_PART = 1 / 128  # of the time so far, between two lines: some 900 lines in a day, 1,100 in a week
_INTERVAL_SECONDS = 2.0  # seconds between two writings
_LAST_SECONDS = 2.0  # seconds that the last one may take
_TYPES: dict[str, Any] = {
    "str | None": str,
    "int": int,
    "int | None": int,
    "float | None": (int, float),
    "tuple[str, ...]": list,
}
# Fields of Progress of which 0 is unknown.
_NUMBERS = ("step", "steps", "epoch", "epochs", "step_seconds", "own_seconds", "data_seconds")


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The state of a rank as its file has it. None: unknown. Times are Unix times by the clock of the rank's host."""

    rank: int
    size: int | None = None
    host: str | None = None
    addresses: tuple[str, ...] = ()  # of the host
    local_rank: int | None = None
    pid: int | None = None
    time: float | None = None  # of writing
    started: float | None = None
    interval: float | None = None  # seconds between two writings
    phase: str | None = None  # one of PHASES
    step: int | None = None
    steps: int | None = None  # of the whole training
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None  # may be NaN or infinite
    step_seconds: float | None = None
    own_seconds: float | None = None  # of a step, in which the rank waits for no other
    data_seconds: float | None = None  # of those, in which it waits for its batch
    progress: float | None = None  # the time of the last progress
    cpu: float | None = None  # percent of one core
    memory: int | None = None  # bytes
    gpu: float | None = None  # percent
    gpu_memory: int | None = None  # bytes
    exit_code: int | None = None
    what: str | None = None  # is wrong
    ended_by: str | None = None  # the signal, or that by which it was asked to save; none where memory was lacking
    lost: int | None = None  # the rank whose guard went first

    def content(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": FORMAT} | asdict(self)

    @property
    def has_ended(self) -> bool:
        return self.phase == ENDED or self.exit_code is not None


def path_of(folder: Path, rank: int) -> Path:
    """Return a rank's file in a job's folder."""
    return folder / FOLDER / f"rank-{rank:05d}.json"


def read_states(folder: Path) -> list[RankState]:
    """Return the states in a job's folder, by rank. A file that cannot be read is a state in which all is unknown."""
    states = []
    for path in (folder / FOLDER).glob("rank-*.json"):
        if name := _NAME.fullmatch(path.name):
            rank = int(name[1])
            try:
                state = parse(rank, path.read_text(encoding="utf-8"))
                states.append(state if state.time is not None else replace(state, time=path.stat().st_mtime))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                states.append(RankState(rank=rank, what=f"{path.name} cannot be read: {error}"))
    return sorted(states, key=lambda state: state.rank)


def parse(rank: int, text: str) -> RankState:
    """Return a state from its file's text. What is missing, or of another type, is unknown.

    Raises:
        ValueError: it is not a JSON object, or a later runner has written it.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if found.get("format", FORMAT) > FORMAT:
        raise ValueError(f"it is of format {found['format']}, and this runner reads {FORMAT}; update the runner")
    known = {
        field.name: found[field.name]
        for field in fields(RankState)
        if isinstance(found.get(field.name), _TYPES[str(field.type)])
    }
    texts = {name: _one_line(value) for name, value in known.items() if isinstance(value, str)}
    return RankState(**known | texts | {"rank": rank, "addresses": tuple(known.get("addresses", ()))})


def _one_line(text: str) -> str:
    """Return a text without control characters: an error message may have colours."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


class History:
    """A rank's states over time, for the page of ``report``. The file is replaced as a whole, so that no line is cut off.

    The time between two lines is a fixed part of the time so far, so the lines of a long run are few.
    """

    def __init__(self) -> None:
        self._text = ""
        self._began = self._next = 0.0  # Unix time

    def add(self, state: Mapping[str, Any], *, is_last: bool = False) -> str | None:
        """Add a line for this state if one is due. Return the new content of the file, or None if it is unchanged."""
        now = float(state["time"])
        if now < self._next and not is_last:
            return None
        self._began = self._began or now
        self._next = now + _PART * (now - self._began)
        known = {name: state[name] for name in FIELDS if state.get(name) is not None}
        self._text += json.dumps(known) + "\n"
        return self._text


def path_of_history(state: Path) -> Path:
    """Return the file beside that of a rank's state."""
    return state.with_suffix(".jsonl")


class StateFile:
    """The state file of one rank. Its guard writes the file, so also while its worker hangs.

    A thread of its own asks what the worker uses: a driver that hangs does not stop the guard.
    """

    def __init__(self, watched: Watched, files: Files) -> None:
        """``watched`` must have a log folder."""
        assert watched.log_folder
        self._names, self._files = watched.names, files
        self._facts = RankState(**watched.names)
        self._path = path_of(watched.log_folder, self._facts.rank)
        self._history = History()
        self._board: Board | None = None  # of the worker that runs
        self.gpu: GpuMeter | None = None
        self._used: tuple[int, float, float] | None = None  # a worker, its processor seconds, and when
        self._end: dict[str, Any] = {}
        self._is_over = False
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)

    def begin(self, board: Board, process: int) -> None:
        """Turn to a new worker."""
        is_first = self._board is None
        self._facts = RankState(**self._names, pid=process, started=time.time(), interval=_INTERVAL_SECONDS)
        self._board, self.gpu = board, None
        self._thread.start() if is_first else self._soon.set()

    def stop(self) -> None:
        """Write no more; within two seconds."""
        self._is_over = True
        self._soon.set()
        if self._board:
            self._thread.join(_LAST_SECONDS)

    def lost(self, rank: int) -> None:
        """Write that another rank's guard is gone; at once, as the launcher may end this one next."""
        self._facts = replace(self._facts, lost=rank)
        self._soon.set()

    def note(self, what: str, ended_by: str) -> None:
        """Write that a signal is to end the rank; at once, as the launcher may kill this guard before there is more to say."""
        self._facts = replace(self._facts, what=what, ended_by=ended_by)
        self._soon.set()

    def end(self, code: int, what: str, ended_by: str | None = None) -> None:
        """Write how the rank has ended, and by which signal; within two seconds."""
        self._end = {"phase": ENDED, "exit_code": code, "what": what, "ended_by": ended_by}
        self.stop()

    def _work(self) -> None:
        while not self._is_over:
            self._write(self._usage())
            self._soon.wait(_INTERVAL_SECONDS)
            self._soon.clear()
        if self._end:
            self._write(self._end)

    def _write(self, more: dict[str, Any]) -> None:
        assert self._board is not None
        progress = self._board.read()
        numbers: dict[str, Any] = {name: getattr(progress, name) or None for name in _NUMBERS}
        state = replace(
            self._facts,
            time=time.time(),
            phase=progress.phase,
            loss=None if math.isnan(progress.loss) else progress.loss,
            progress=time.time() - (time.monotonic() - progress.at) if progress.at else None,
            **numbers,
        )
        state = replace(state, **more)
        content = state.content()
        self._files.put(self._path, json.dumps(content))
        if text := self._history.add(content, is_last=state.exit_code is not None):
            self._files.put(path_of_history(self._path), text)

    def _usage(self) -> dict[str, Any]:
        """Return the worker's share of a core in percent, its memory, and its GPU's use."""
        worker = self._facts.pid or 0
        if (stat := process_stat(worker)) is None:
            return {}
        with in_library():
            gpu = self.gpu.usage() if self.gpu else {}
        now, seconds, last = time.monotonic(), stat.processor_seconds, self._used
        self._used = worker, seconds, now
        is_known = last is not None and last[0] == worker and now > last[2]
        cpu = 100 * (seconds - last[1]) / (now - last[2]) if last and is_known else None
        return {"cpu": cpu, "memory": stat.memory} | gpu
