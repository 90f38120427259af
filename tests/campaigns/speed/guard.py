"""What a guard costs: time at the start and end of a job, memory, and processor time while the job trains.

    python -m tests.campaigns.speed.guard [--rounds 15] [--seconds 20]

The job of the first is a script that does nothing, with the guard and without, in turn. Memory is what the guard and its sweeper
have for themselves (USS), per rank.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

import psutil

from tests.launching import RUNNER, clean_environment, mpirun_path, ok, path_of, run

MEMORY, SECONDS = 10.0, 0.050  # MB and seconds per rank, wanted at most
UNGUARDED = [sys.executable, path_of("unguarded")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20, help="of training")
    given = parser.parse_args()
    measure_start(given.rounds)
    measure_training(given.seconds)


def measure_start(rounds: int) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        differences = []
        for number in range(rounds + 1):  # the first fills the file cache
            took = [_seconds([*command, script.name]) for command in (RUNNER, UNGUARDED)]
            if number:
                differences.append(took[0] - took[1])
    middle = statistics.median(differences)
    spread = f"{1e3 * min(differences):.0f} to {1e3 * max(differences):.0f}"
    print(f"start and end: {1e3 * middle:.0f} ms more ({spread}), wanted: at most {1e3 * SECONDS:.0f}")


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    ok(run(*command))
    return time.perf_counter() - start


def measure_training(seconds: float) -> None:
    training = ["workloads.mnist", "--data", "digits", "--epochs", "1000", "--save-every", "end"]
    with tempfile.TemporaryDirectory() as folder:
        command = [mpirun_path(), "-np", "2", *RUNNER, *training, "--checkpoint-dir", folder]
        job = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)
        try:
            time.sleep(15)  # the ranks start
            guards = [child for child in psutil.Process(job.pid).children() if child.children()]
            small = [
                process
                for guard in guards
                for process in (guard, *guard.children())
                if process.memory_info().rss < 100e6
            ]
            before = sum(sum(process.cpu_times()[:2]) for process in small)
            time.sleep(seconds)
            used = sum(sum(process.cpu_times()[:2]) for process in small) - before
            memory = sum(process.memory_full_info().uss for process in small)
        finally:
            job.terminate()
            job.wait(30)
    print(f"memory per rank: {memory / len(guards) / 1e6:.1f} MB, wanted: at most {MEMORY:.0f}")
    print(f"processor time per rank: {100 * used / seconds / len(guards):.2f} % of a core")


if __name__ == "__main__":
    main()
