"""How many graphs are compiled on a host, and how long a first step takes, by the runner and by torchrun in turn."""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence

from tests.campaigns.speed.spread import ratios, spread
from tests.launching import RUNNER, mpirun_path, ok, path_of, run
from tests.pages import table

RANKS, ROUNDS = 4, 5
PROGRAM = path_of("compiles_a_model")
WAYS = {
    "the runner": [mpirun_path(), "-np", str(RANKS), *RUNNER, PROGRAM],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", PROGRAM],
}


def section() -> list[str]:
    """Measure, and return the lines of the page's section."""
    found = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, command in WAYS.items():
            found[way].append(_first_step(command))
    rows = [
        [way, *sorted({graphs for graphs, _ in rounds}), f"{statistics.median(seconds for _, seconds in rounds):.1f}"]
        for way, rounds in found.items()
    ]
    ours, theirs = ([seconds for _, seconds in found[way]] for way in WAYS)
    return [
        f"torch.compile of two blocks, forward and backward, on {RANKS} ranks of one host, each time with empty caches.",
        "",
        *table(["started by", "graphs compiled on the host", "first step (s), median"], rows),
        "",
        f"First step, torchrun ÷ runner, median and range of {ROUNDS} rounds: {spread(ratios(theirs, ours), 2)}. torch itself compiles equal C++ code once "
        "per host, by a lock of its own, so most of the time is the same.",
    ]


def _first_step(command: Sequence[str]) -> tuple[int, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = ok(run(*command, TMPDIR=folder, TORCHINDUCTOR_CACHE_DIR=f"{folder}/cache"))
    ranks = [json.loads(found) for found in re.findall(r"\{[^{}]*\}", done.stdout)]  # torchrun's lines may mix
    assert len(ranks) == RANKS, done.stdout
    return sum(rank["graphs"] for rank in ranks), max(rank["seconds"] for rank in ranks)
