"""allreduce by gloo and mpi4py with busy loops beside it, over several launches: how evenly the cores are shared is a
launch's luck, so that one launch says little.

    python -m tests.campaigns.speed.loaded [--launches 8] [--load 2] [--ranks 2] [--json FILE]

Prints, for each size, the mean over all launches, the worst launch's mean, and gloo's divided by mpi4py's of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.training.settings import not_negative, positive
from tests.campaigns.speed.measuring import BUSY
from tests.launching import ROOT, RUNNER, mpirun, ok

BACKENDS = ("gloo", "mpi4py")
PATIENCE = 300.0  # seconds, for a launch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.speed.loaded", description=__doc__)
    parser.add_argument("--launches", type=positive, default=8)
    parser.add_argument("--load", type=not_negative, default=2, help="busy loops per host (default: 2)")
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--min", default="4K")
    parser.add_argument("--max", default="16M")
    parser.add_argument("--factor", type=positive, default=16)
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = ["--min", given.min, "--max", given.max, "--factor", str(given.factor), "--rounds", str(given.rounds)]
    means: dict[tuple[str, int], list[float]] = {}
    for number in range(given.launches):
        for m in launch(given.ranks, given.load, sizes):
            means.setdefault((m["backend"], m["size"]), []).append(m["mean"])
        print(f"launch {number + 1} of {given.launches}", file=sys.stderr, flush=True)
    rows = [row(size, means) for size in sorted({size for _, size in means})]
    print(f"allreduce, {given.ranks} ranks, {given.load} busy loops per host, {given.launches} launches; means in µs")
    show(rows)
    if given.json:
        facts = {"ranks": given.ranks, "load": given.load, "launches": given.launches, "sizes": rows}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")


def launch(ranks: int, load: int, options: Iterable[str]) -> list[dict[str, Any]]:
    """The measurements of one launch, in which the backends take turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.jsonl"
        beside = [sys.executable, "-m", BUSY, "--load", str(load)]
        command = [*beside, *RUNNER, "bench", "--backend", ",".join(BACKENDS), *options, "--json", str(file)]
        ok(mpirun(ranks, *command, cwd=ROOT, timeout=PATIENCE))
        return [json.loads(line) for line in file.read_text().splitlines()]


def row(size: int, means: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    """Of one size: seconds by backend, and gloo's ÷ mpi4py's."""
    mean = {backend: statistics.fmean(means[backend, size]) for backend in BACKENDS}
    worst = {backend: max(means[backend, size]) for backend in BACKENDS}
    ratios = {"mean_ratio": mean["gloo"] / mean["mpi4py"], "worst_ratio": worst["gloo"] / worst["mpi4py"]}
    return {"size": size, "mean": mean, "worst": worst, **ratios}


def show(rows: Iterable[dict[str, Any]]) -> None:
    titles = [f"{what} {backend}" for what in ("mean", "worst") for backend in BACKENDS]
    print(f"{'size (B)':>9}  {'  '.join(f'{title:>12}' for title in titles)}  gloo ÷ mpi4py, mean and worst")
    for one in rows:
        times = [one[what][backend] for what in ("mean", "worst") for backend in BACKENDS]
        cells = "  ".join(f"{1e6 * time:12.1f}" for time in times)
        print(f"{one['size']:9}  {cells}  {one['mean_ratio']:19.2f} {one['worst_ratio']:9.2f}")


if __name__ == "__main__":
    main()
