"""How long a job takes that makes one allreduce: the runner, torchrun, and mpirun with variables set by hand, in turn.

    python -m tests.campaigns.speed.startup [ROUNDS]

Prints the median wall time of each, and the ratios round by round (median, smallest and largest).
"""

from __future__ import annotations

import shlex
import sys
import time

from tests.campaigns.speed.spread import ratios, spread
from tests.launching import RUNNER, free_port, mpirun_path, ok, path_of, run, torchrun_command

SCRIPT = path_of("ddp_allreduce")
BY_HAND = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
    f"MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()} OMP_NUM_THREADS=1; exec {shlex.quote(sys.executable)} {shlex.quote(SCRIPT)}"
)
COMMANDS = {
    "runner": [mpirun_path(), "-np", "2", *RUNNER, SCRIPT],
    "torchrun": torchrun_command(2, SCRIPT),
    "by hand": [mpirun_path(), "-np", "2", "bash", "-c", BY_HAND],
}
AT_MOST = {"torchrun": 0.65, "by hand": 1.15}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):  # the first warms the file cache and is not counted
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            ok(run(*command, OMP_NUM_THREADS="1") if name == "torchrun" else run(*command))
            if number:
                seconds[name].append(time.perf_counter() - start)
        print(f"round {number} of {rounds}", end="\r", file=sys.stderr)
    for name, times in seconds.items():
        print(f"{name:10} {spread(times, 2)} s")
    for name, limit in AT_MOST.items():
        print(f"runner / {name:10} {spread(ratios(seconds['runner'], seconds[name]), 2)}, wanted: at most {limit}")


if __name__ == "__main__":
    main()
