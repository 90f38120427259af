"""Kill ranks at random moments of training and saving, and see that nothing is lost.

    python -m tests.kills [--kills 100] [--ranks 4] [--seed 0] [--supervise] [--training "--strategy fsdp --save-async"]

The job starts again in place, or with --supervise by its launcher, from the newest intact checkpoint. After each kill it has to go on
from the newest checkpoint that was complete before the kill, or a later one; at the end its weights are those of an uninterrupted
run, bit for bit. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from runner.errors import UsageError
from runner.training.checkpoint_folder import check_files, name_of, steps_in, unseal
from tests.launching import RUNNER, SCRIPTS, clean_environment, mpirun_path, ok, run

RESUMED = re.compile(r"going on from \S+, step (\d+)")
_WORKER = 200e6  # bytes: what has imported torch is a worker, or a spare one


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--supervise", action="store_true")
    parser.add_argument(
        "--training", type=str.split, default=[], metavar="OPTIONS", help="more options of the training"
    )
    given = parser.parse_args()
    draw, steps = random.Random(given.seed), 60 * given.kills
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name, "log")
        command = job(given.ranks, folder / "killed", steps, ["--restart-in-place", "100000"], given.training)
        if given.supervise:
            options = ["--max-restarts", "100000", "--log-dir", str(folder / "attempts")]
            command = [
                *RUNNER,
                "supervise",
                *options,
                "--",
                *job(given.ranks, folder / "killed", steps, [], given.training),
            ]
        kills: list[tuple[int, int]] = []
        with open(log, "w") as output:
            process = subprocess.Popen(command, cwd=SCRIPTS, env=clean_environment(), stdout=output, stderr=output)
            while len(kills) < given.kills and process.poll() is None:
                if draw.random() < 0.8:  # else it may be killed while it starts
                    _wait_for_more(folder / "killed", kills[-1][0] if kills else 0, process)
                time.sleep(draw.uniform(0.0, 0.5))
                workers = [one for one in psutil.Process(process.pid).children(recursive=True) if is_worker(one)]
                if len(workers) >= given.ranks:
                    kills.append((newest(folder / "killed"), len(RESUMED.findall(log.read_text()))))
                    draw.choice(workers).kill()
            process.wait()
        text = log.read_text()
        print(f"{len(kills)} kills, exit code {process.returncode}, {text.count('going on from')} times gone on")
        if process.returncode:
            sys.exit(text[-3000:])
        ok(run(*job(given.ranks, folder / "whole", steps, [], given.training), cwd=SCRIPTS, timeout=3600))
        missed = lost(kills, [int(step) for step in RESUMED.findall(text)])
        print(f"checkpoints that were complete and not gone on from: {missed}")
        killed, whole = (_tensors(folder / name / name_of(steps)) for name in ("killed", "whole"))
        print(f"final weights and optimizer equal an uninterrupted run's: {killed == whole}")
        sys.exit(bool(missed) or not whole or killed != whole)


def _tensors(checkpoint: Path) -> dict[str, bytes]:
    """The files of a checkpoint but its seal: one, or one per rank."""
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def _wait_for_more(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for a checkpoint after this step."""
    while process.poll() is None and next(iter(steps_in(folder)), (0, folder))[0] <= step:
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
        resumed: the steps from which it went on. (A kill may have hit a spare process.)
    """
    return [step for step, count in kills if count < len(resumed) and resumed[count] < step]


if __name__ == "__main__":
    main()
