"""Kill ranks at random moments of training and saving, and see that nothing is lost.

    python -m tests.kills [--kills 100] [--ranks 4] [--seed 0] [--supervise] [--training "--strategy fsdp --save-async"]

The job starts again in place, or with --supervise by its launcher, from the newest intact checkpoint. After each kill it has to go on
from the newest checkpoint that was complete before the kill, or a later one; at the end its weights are those of an uninterrupted
run, bit for bit. The kills are those of ranks' own processes; between them some spare processes are killed, with --supervise some
guards. Exit code 1 if something was lost, or the training has ended before so many kills.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from runner.errors import UsageError
from runner.guard.rank_state import read_states
from runner.training.checkpoint_folder import check_files, name_of, steps_in, unseal
from tests.launching import RUNNER, SCRIPTS, clean_environment, mpirun_path, ok, run

RESUMED = re.compile(r"going on from \S+, step (\d+)")
_WORKER = 200e6  # bytes: what has imported torch is a worker, or a spare one
_OTHERS = 0.15  # the share of attempts at a process that is no rank's own


def job(ranks: int, folder: Path, steps: int, options: list[str], more: list[str]) -> list[str]:
    """A training that is saved every three steps, with options of the runner, and more of the training."""
    training = [
        "faulty",
        "--checkpoint-dir",
        str(folder),
        "--max-steps",
        str(steps),
        "--resume",
        "auto",
        "--batch-size",
        "8",
    ]
    training += [
        "--save-every",
        "0",
        "--save-every-steps",
        "3",
        "--log-every",
        "3",
        "--backend",
        "gloo",
        "--milliseconds",
        "20",
    ]
    return [mpirun_path(), "-np", str(ranks), *RUNNER, *options, *training, *more]


def newest(folder: Path) -> int:
    """The step of the newest complete checkpoint, whose files are as they were written; 0 if there is none."""
    for step, path in steps_in(folder):
        try:
            _, sums = unseal(path)
            check_files(path, sums)
        except (UsageError, OSError):
            if path.exists():  # not removed meanwhile, as --keep says
                raise
            continue
        return step
    return 0


def ranks_of(job: psutil.Process, log: Path) -> list[psutil.Process]:
    """The ranks' own processes that run below a job, by the states that they leave; no spare ones.

    Args:
        log: of its ``--log-dir``, or of that of ``supervise``.
    """
    attempts = sorted(log.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    own = {state.pid for state in read_states(attempts[-1] if attempts else log)}
    return [one for one in job.children(recursive=True) if one.pid in own and one.status() != psutil.STATUS_ZOMBIE]


def guards_of(ranks: list[psutil.Process]) -> list[psutil.Process]:
    """The processes of which the ranks are forks. A rank whose guard is gone has another parent, such as supervise."""
    return [guard for one in ranks if (guard := one.parent()) and guard.cmdline() == one.cmdline()]


def spares_of(ranks: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that have imported torch and wait to take a rank's place: its guard's other children."""
    return [one for guard in guards_of(ranks) for one in guard.children() if one not in ranks and is_worker(one)]


VICTIMS: dict[str, Callable[[list[psutil.Process]], list[psutil.Process]]] = {
    "ranks": lambda ranks: ranks,
    "guards": guards_of,
    "spare processes": spares_of,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--supervise", action="store_true")
    parser.add_argument(
        "--training", type=str.split, default=[], metavar="OPTIONS", help="more options of the training"
    )
    given = parser.parse_args()
    draw, steps = random.Random(given.seed), 60 * given.kills
    with tempfile.TemporaryDirectory() as name:
        folder, log, states = Path(name), Path(name, "log"), Path(name, "states")
        options = ["--restart-in-place", "100000", "--log-dir", str(states)]
        command = job(given.ranks, folder / "killed", steps, [] if given.supervise else options, given.training)
        if given.supervise:
            command = [*RUNNER, "supervise", "--max-restarts", "100000", "--log-dir", str(states), "--", *command]
        other = "guards" if given.supervise else "spare processes"
        kills: list[tuple[int, int]] = []
        killed: Counter[str] = Counter()
        with open(log, "w") as output:
            process = subprocess.Popen(command, cwd=SCRIPTS, env=clean_environment(), stdout=output, stderr=output)
            while killed["ranks"] < given.kills and process.poll() is None:
                if not kills or draw.random() < 0.8:  # else it may be killed while it starts
                    _wait_for_another(folder / "killed", process)
                time.sleep(draw.uniform(0.0, 0.5))
                kind = other if draw.random() < _OTHERS else "ranks"
                with suppress(psutil.NoSuchProcess):
                    if victims := VICTIMS[kind](ranks_of(psutil.Process(process.pid), states)):
                        kills.append((newest(folder / "killed"), len(RESUMED.findall(log.read_text()))))
                        draw.choice(victims).kill()
                        killed[kind] += 1
            process.wait()
        text, counts = log.read_text(), ", ".join(f"{killed[kind]} {kind}" for kind in ("ranks", other))
        print(f"killed: {counts}; exit code {process.returncode}, {text.count('going on from')} times gone on")
        if process.returncode:
            sys.exit(text[-3000:])
        if killed["ranks"] < given.kills:
            sys.exit(f"the training has ended before {given.kills} ranks were killed")
        ok(run(*job(given.ranks, folder / "whole", steps, [], given.training), cwd=SCRIPTS, timeout=3600))
        missed = lost(kills, [int(step) for step in RESUMED.findall(text)])
        print(f"checkpoints that were complete and not gone on from: {missed}")
        ends = [_tensors(folder / name / name_of(steps)) for name in ("killed", "whole")]
        print(f"final weights and optimizer equal an uninterrupted run's: {ends[0] == ends[1]}")
        sys.exit(bool(missed) or not ends[1] or ends[0] != ends[1])


def _tensors(checkpoint: Path) -> dict[str, bytes]:
    """The files of a checkpoint but its seal: one, or one per rank."""
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def _wait_for_another(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for another checkpoint."""
    before = steps_in(folder)[:1]
    while process.poll() is None and steps_in(folder)[:1] == before:
        time.sleep(0.02)


def is_worker(process: psutil.Process) -> bool:
    try:
        return bool(process.memory_info().rss > _WORKER)
    except psutil.Error:
        return False


def lost(kills: list[tuple[int, int]], resumed: list[int]) -> list[int]:
    """The steps of complete checkpoints from which, or from later ones, a training should have gone on.

    Args:
        kills: before each the newest complete checkpoint, and how often the training had gone on.
        resumed: the steps from which it went on, after a kill of a spare process only with the next one.
    """
    return [step for step, count in kills if count < len(resumed) and resumed[count] < step]


if __name__ == "__main__":
    main()
