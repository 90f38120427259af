"""A step of workloads.mnist by gloo and mpi4py, on quiet cores and beside another MPI job that spins on the same ones.

    python -m tests.campaigns.speed.beside [--ranks 2] [--steps 120] [--rounds 8] [--json FILE]

The other job has as many ranks and does nothing but allreduce; it is started by the same mpirun with the same binding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.training.settings import positive
from tests.launching import ROOT, RUNNER, clean_environment, mpirun, mpirun_path, ok

WORKLOAD = ["workloads.mnist", "--data", "digits"]
ENGINES = ("ddp:gloo", "ddp:mpi4py")
START, PATIENCE = 60.0, 600.0  # seconds until the other job spins, and for all that runs beside it

# It ends by itself where nobody is left to end it; the first rank's clock counts, so that all end after the same call.
SPIN = f"""
import time
import numpy as np
from mpi4py import MPI
own, every = np.zeros(1024), np.zeros(1024)
end = time.monotonic() + {START + PATIENCE}
MPI.COMM_WORLD.Allreduce(own, every)
if MPI.COMM_WORLD.rank == 0:
    print("spins", flush=True)
while not every[0]:
    own[0] = MPI.COMM_WORLD.rank == 0 and time.monotonic() > end
    MPI.COMM_WORLD.Allreduce(own, every)
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.speed.beside", description=__doc__)
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=120)
    parser.add_argument("--rounds", type=positive, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for title, beside in (("quiet", contextlib.nullcontext()), ("beside another MPI job", spinning(given.ranks))):
        with beside:
            text, found[title] = compared(given.ranks, given.steps, given.rounds)
        print(f"{title}:\n\n{text}", flush=True)
    for title, engines in found.items():
        gloo, mpi = (engines[name]["step"] for name in ENGINES)
        print(f"{title:22}  gloo {1e3 * gloo:6.2f} ms, mpi4py {1e3 * mpi:6.2f} ms per step, ratio {gloo / mpi:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def compared(ranks: int, steps: int, rounds: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """What compare prints, and its engines by name."""
    counts = ["--steps", str(steps), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engines.json"
        files = ["--json", str(file), "--checkpoint-dir", folder]
        command = [*RUNNER, "compare", *WORKLOAD, "--engines", ",".join(ENGINES), *counts, *files]
        text = ok(mpirun(ranks, *command, cwd=ROOT, timeout=PATIENCE)).stdout
        engines = json.loads(file.read_text())["engines"]
    return text.replace(f"wrote {file}\n", ""), {engine["engine"]: engine for engine in engines}


@contextlib.contextmanager
def spinning(ranks: int) -> Iterator[None]:
    """Another MPI job of as many ranks."""
    with subprocess.Popen(
        [mpirun_path(), "-np", str(ranks), sys.executable, "-c", SPIN],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            assert job.stdout is not None
            assert select.select([job.stdout], [], [], START)[0], f"the other job has not started within {START:.0f} s"
            assert job.stdout.readline() == "spins\n", "the other job has failed"
            yield
            assert job.poll() is None, "the other job has ended by itself"
        finally:
            job.terminate()  # mpirun ends its ranks
            try:
                job.wait(timeout=30)
            except subprocess.TimeoutExpired:
                job.kill()


if __name__ == "__main__":
    main()
