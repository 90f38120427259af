"""From the SIGKILL of a rank to the next step of the training, beside torchrun --max-restarts, in turn.

    python -m tests.campaigns.speed.restart [--ranks 2 4] [--rounds 5]

The job is the same script under both: a few steps by DDP on gloo, a checkpoint after each; it kills one of its ranks once, and continues
from its checkpoint. Prints the seconds of each, and the ratios.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from tests.campaigns.speed.spread import ratios, spread
from tests.launching import RUNNER, mpirun_path, path_of, run, torchrun_command

SCRIPT = path_of("killed_once")
PAUSE = "3"  # seconds of training before the kill


def by_supervise(ranks: int, folder: Path) -> list[str]:
    job = [mpirun_path(), "-np", str(ranks), *RUNNER, SCRIPT, str(folder), PAUSE]
    return [*RUNNER, "supervise", "--log-dir", str(folder / "log"), "--", *job]


def in_place(ranks: int, folder: Path) -> list[str]:
    return [mpirun_path(), "-np", str(ranks), *RUNNER, "--restart-in-place", "3", SCRIPT, str(folder), PAUSE]


def by_torchrun(ranks: int, folder: Path) -> list[str]:
    # Else torch 2.14's workers share the agents' store, and often read addresses of ranks that are gone: gloo is refused, or it hangs.
    fresh_store = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    return [*fresh_store, *torchrun_command(ranks, "--max-restarts", "3", SCRIPT, str(folder), PAUSE)]


def measure(command: list[str], folder: Path) -> float:
    """Seconds; infinity if the job has not gone on to its end within 90 s."""
    try:
        is_done = run(*command, timeout=90).returncode == 0
    except TimeoutError:
        is_done = False
    if not is_done:
        return math.inf
    killed, went_on = (float((folder / name).read_text()) for name in ("killed", "went-on"))
    return went_on - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for ranks in given.ranks:
        ways = {"in place": in_place, "supervise": by_supervise, "torchrun": by_torchrun}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, way in ways.items():
                with tempfile.TemporaryDirectory() as folder:
                    found[name].append(measure(way(ranks, Path(folder)), Path(folder)))
        for name, seconds in found.items():
            print(f"{ranks} ranks, {name:10} {spread(seconds, 2)} s")
        for name in ("in place", "supervise"):
            known = [one for one in ratios(found[name], found["torchrun"]) if 0 < one < math.inf]  # both have gone on
            print(f"{ranks} ranks, {name} ÷ torchrun {spread(known or [math.nan], 2)}", flush=True)


if __name__ == "__main__":
    main()
