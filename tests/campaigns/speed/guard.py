"""What watching a job costs: memory, and processor time while the job trains.

    python -m tests.campaigns.speed.guard [--ranks 2 8] [--seconds 20]

Memory is the proportional set size (PSS) of each kind of process, with its share of what several have in common: torch's is the
importer's and the workers'.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.launching import RUNNER, clean_environment, mpirun_path
from tests.polling import poll_until
from tests.processes import AGENT, IMPORTER, is_worker, left_of, of_name, processes, proxies

STARTING = 120.0  # seconds until all ranks train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--seconds", type=float, default=20, help="of training")
    given = parser.parse_args()
    for ranks in given.ranks:
        measure_training(ranks, given.seconds)


def measure_training(ranks: int, seconds: float) -> None:
    training = ["workloads.mnist", "--data", "digits", "--epochs", "100000", "--save-every", "end"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = ["--checkpoint-dir", str(folder / "runs"), "--log-dir", str(folder / "log")]
        command = [mpirun_path(), "-np", str(ranks), *RUNNER, *training, *files]
        job = subprocess.Popen(command, env=clean_environment(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL)
        try:
            poll_until(lambda: _that_train(folder) == ranks, STARTING, "all ranks train")
            found = [process for process in processes(folder) if process.pid != job.pid]
            workers = [process for process in found if is_worker(process)]
            agents, importers = of_name(found, AGENT), of_name(found, IMPORTER)
            before = _processor(agents)
            time.sleep(seconds)
            used = _processor(agents) - before
            kinds = {"proxies": proxies(workers, found), "agent": agents, "importer": importers, "workers": workers}
            print(f"{ranks} ranks:")
            for kind, those in kinds.items():
                memory = sum(process.memory_full_info().pss for process in those) / 2**20
                print(f"{kind:>10}  {len(those)}  {memory:6.1f} MiB, {memory / ranks:5.1f} per rank")
        finally:
            job.terminate()
            job.wait(30)
            left_of(folder)
    print(
        f"     agent  {100 * used / seconds:.2f} % of a core, {100 * used / seconds / ranks:.2f} per rank", flush=True
    )


def _that_train(folder: Path) -> int:
    return sum('"phase": "training"' in state.read_text() for state in folder.glob("log/state/rank-*.json"))


def _processor(those: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in those)


if __name__ == "__main__":
    main()
