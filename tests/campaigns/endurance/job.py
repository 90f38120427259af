"""A training that starts again by itself, the processes to hurt, and what its checkpoints show at the end."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGUSR1
from typing import TypeVar

import psutil
from safetensors.torch import load_file

from runner.base.errors import UsageError
from runner.guard.report.rank_state import read_states
from runner.training.checkpoint.checkpoint_folder import check_files, name_of, read_manifest, steps_in
from tests.launching import ROOT, RUNNER, clean_environment, folder_of, ok, run
from tests.polling import poll_until
from tests.processes import AGENT, IMPORTER, left_of, of_name, proxies
from tests.results import metrics

T = TypeVar("T")

PATIENCE = 90.0  # seconds in which a job has to continue
_KEPT = 6.0  # seconds: an agent may wait for `supervise`'s next start for 4 after a rank has failed
_LAG = 1.0  # seconds that a line of the job may take through its launcher: later than the next checkpoint, on a busy machine
_RESUMED = re.compile(r"continuing from \S+, step (\d+)")
_RESTARTS = "100000"


@dataclass(kw_only=True)
class Job:
    """The training of tests/programs/failures/faulty.py without an end, in a folder.

    Attributes:
        launch: the command that starts a program on all ranks.
        on_host: the command that runs another where launchers are started.
        environment: of these commands.
        in_place: its ranks start again in place.
        supervised: ``supervise`` starts it again.
        every: steps from one checkpoint to the next.
        options: more of the training.
        before: of each thing that was done to it, the newest complete checkpoint, and how often the training had gone on.
    """

    folder: Path
    launch: Callable[[Sequence[str]], list[str]]
    on_host: Callable[[Sequence[str]], list[str]] = list
    environment: dict[str, str] = field(default_factory=dict)
    in_place: bool
    supervised: bool
    every: int
    options: Sequence[str] = ()
    before: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment = self.environment | {"PYTHONPATH": f"{ROOT}:{folder_of('faulty')}"}
        self.checkpoints, self.states = self.folder / "hurt", self.folder / "states"
        states = ["--log-dir", str(self.states)]
        options = [*(["--restart-in-place", _RESTARTS] if self.in_place else []), *([] if self.supervised else states)]
        command = self._command("hurt", ["--max-steps", str(10**9), "--milliseconds", "20"], options)
        if self.supervised:
            command = [*RUNNER, "supervise", "--max-restarts", _RESTARTS, *states, "--", *command]
        self._log, self._began = self.folder / "log", time.monotonic()
        with open(self._log, "w") as output:
            self.process = subprocess.Popen(
                self.on_host(command),
                env=clean_environment(**self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _command(self, name: str, length: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        training = ["faulty", "--checkpoint-dir", str(self.folder / name), "--resume", "auto", "--backend", "gloo"]
        training += ["--batch-size", "8", *length, *self.options]
        training += ["--save-every", f"{self.every}steps", "--log-every", str(self.every)]
        return self.launch([*RUNNER, *options, *training])

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)

    def newest(self) -> int:
        """The step of the newest complete checkpoint, whose files are as they were written; 0 if there is none."""
        for step, path in steps_in(self.checkpoints):
            try:
                _, sums = read_manifest(path)
                check_files(path, sums)
            except (UsageError, OSError):
                if path.exists():  # not removed meanwhile, as --keep says
                    raise
                continue
            return step
        return 0

    def resumed(self) -> list[int]:
        """The steps from which it has gone on."""
        return [int(step) for step in _RESUMED.findall(self._log.read_text())]

    def reach(self, step: int) -> int:
        """Wait for a checkpoint after this step. Returns that one's step."""
        return self._wait(lambda: last if (last := self.newest()) > step else 0, f"a checkpoint after step {step}")

    def go_on(self, step: int) -> None:
        """Wait until it trains again. The first checkpoint after this step may have been written meanwhile."""
        self.reach(self.reach(step))

    def victims(self, kind: str) -> list[psutil.Process]:
        """The processes of a kind (of ``VICTIMS``) that there are now."""
        with suppress(psutil.NoSuchProcess):
            attempts = sorted(self.states.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
            own = {state.pid for state in read_states(attempts[-1] if attempts else self.states)}
            below = psutil.Process(self.process.pid).children(recursive=True)
            return VICTIMS[kind]([one for one in below if one.pid in own and one.status() != psutil.STATUS_ZOMBIE])
        return []

    def some(self, kind: str) -> list[psutil.Process]:
        """The processes of a kind, once there are any."""
        return self._wait(lambda: self.victims(kind), kind)

    def note(self) -> int:
        """To be called before anything is done to it. Returns the step of the newest complete checkpoint."""
        newest = self.newest()
        time.sleep(_LAG)
        self.before.append((newest, len(self.resumed())))
        return self.before[-1][0]

    def finish(self) -> int:
        """Ask it to save and to end. Returns its last step."""
        self.process.send_signal(SIGUSR1)
        code = self.process.wait(PATIENCE)
        assert code == 75, f"exit code {code}:\n{self._end_of_log()}"
        return self.newest()

    def problems(self, last: int) -> list[str]:
        """What is wrong, once it has ended with this step: what was lost, and what differs from an uninterrupted run."""
        resumed = self.resumed()  # after the kill of an importer that was not used only with the next one
        lost = [step for step, count in self.before if count < len(resumed) and resumed[count] < step]
        found = [f"step {step} was saved, and neither it nor a later one was gone on from" for step in lost]
        if [line["step"] for line in metrics(self.checkpoints)] != list(range(1, last + 1)):
            found.append("the metrics are not those of each step once")
        found += [f"left: {one}" for one in left_of(self.folder, _KEPT)]
        print(f"checking against {last} steps without a fault", flush=True)
        whole = self.on_host(self._command("whole", ["--max-steps", str(last), "--milliseconds", "0"]))
        seconds = 300 + 2 * (time.monotonic() - self._began)
        ok(run(*whole, cwd=self.folder, timeout=seconds, **self.environment))
        ends = [_tensors(self.folder / name / name_of(last)) for name in ("hurt", "whole")]
        if not ends[1] or ends[0] != ends[1]:
            found.append("the final weights and optimizer are not those of an uninterrupted run")
        return found

    def _wait(self, condition: Callable[[], T], what: str) -> T:
        try:
            return poll_until(condition, PATIENCE, what, self.process)
        except (TimeoutError, RuntimeError) as error:
            raise AssertionError(f"{error}\n{self._end_of_log()}") from None

    def _end_of_log(self) -> str:
        return self._log.read_text()[-3000:]


def _tensors(checkpoint: Path) -> dict[tuple[str, str], bytes]:
    """The bytes of a checkpoint's tensors, by file and name. (The order of a file's metadata is safetensors' chance.)"""
    files = sorted(checkpoint.glob("*.safetensors"))  # one, or one per rank
    return {(path.name, name): one.numpy().tobytes() for path in files for name, one in load_file(path).items()}


def _above(name: str) -> Callable[[list[psutil.Process]], list[psutil.Process]]:
    """The processes of a name above the ranks, the nearest: that of `supervise`, which is a rank itself, is above all."""
    return lambda ranks: list({one.pid: one for rank in ranks for one in of_name(rank.parents(), name)[:1]}.values())


def _proxies(ranks: list[psutil.Process]) -> list[psutil.Process]:
    return proxies(ranks, psutil.process_iter())


VICTIMS: dict[str, Callable[[list[psutil.Process]], list[psutil.Process]]] = {
    "ranks": lambda ranks: ranks,
    "agents": _above(AGENT),
    "importers": _above(IMPORTER),
    "proxies": _proxies,
}
