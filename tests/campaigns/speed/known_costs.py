"""What a scaling study makes of a training whose costs are known, and how well it predicts 64 ranks.

    python -m tests.campaigns.speed.known_costs [--ranks 1,2,4,8] [--predicted 64] [--rounds 3] [--write]

The training (tests/programs/scaling/known_costs.py) computes c·batch/256 and, with others, communicates a + b·ranks, by sleeping, so
that its ranks need no cores. A busy machine adds to each step. ``--write``: into docs/results/scaling.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import date
from pathlib import Path

from runner.tools.costs.study import STRONG, WEAK, Study, read_study
from tests.launching import folder_of, ok, runner
from tests.pages import RESULTS, table

KNOWN = {"c": 1.6, "a": 0.02, "b": 0.005}  # seconds
BATCH = 256
_PATIENCE = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--predicted", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/results/scaling.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = study(Path(folder), given.ranks, given.rounds)
        large = study(Path(folder), str(given.predicted), given.rounds)
    text = page(small, large)
    print(text)
    if given.write:
        (RESULTS / "scaling.md").write_text(text)


def study(folder: Path, ranks: str, rounds: int) -> Study:
    """Of these sizes, in one launch of as many ranks as the largest has."""
    most = int(ranks.rpartition(",")[2])
    words = [
        f"--ranks={ranks}",
        f"--global-batch-size={BATCH}",
        f"--batch-size={BATCH // 8}",
        "--steps=10",
        "--warmup=2",
    ]
    words += [f"--rounds={rounds}", "--interval=1", "--json=study.json", "known_costs"]
    ok(runner(most, "scale", *words, cwd=folder, timeout=_PATIENCE, PYTHONPATH=folder_of("known_costs")))
    return read_study(folder / "study.json")


def seconds(scaling: str, ranks: int) -> float:
    """Of a step, as it is known."""
    computing = KNOWN["c"] / ranks if scaling == STRONG else KNOWN["c"] / 8
    return computing + (KNOWN["a"] + KNOWN["b"] * ranks if ranks > 1 else 0.0)


def page(small: Study, large: Study) -> str:
    rows, costs = [], []
    for scaling in (STRONG, WEAK):
        found = small.fit(scaling)
        assert found is not None
        for size in small.measured(scaling):
            work = size.ranks if scaling == WEAK else 1
            known = work * seconds(scaling, 1) / seconds(scaling, size.ranks) / size.ranks
            rows.append(_row(scaling, size.ranks, seconds(scaling, size.ranks), size.seconds))
            rows[-1] += (f"{known:.1%}", f"{small.efficiency(size):.1%}")
        for size in large.measured(scaling):
            rows.append((*_row(f"{scaling}, predicted", size.ranks, size.seconds, found.seconds(size.ranks)), "", ""))
        known_c = seconds(scaling, 1)
        for name, known, value in (("c", known_c, found.c), ("a", KNOWN["a"], found.a), ("b", KNOWN["b"], found.b)):
            costs.append((scaling, name, f"{1e3 * known:.1f}", f"{1e3 * value:.2f}", f"{value / known - 1:+.1%}"))
    load = f"{date.today()}, on {os.cpu_count()} cores (load {os.getloadavg()[0]:.0f} at the end)"
    lines = [
        "# A scaling study of known costs",
        "",
        f"Written by `python -m tests.campaigns.speed.known_costs --write` on {load}. A step is known where it says so; a prediction is "
        "compared with a run of so many ranks.",
        "",
        *table(("scaling", "ranks", "a step is (ms)", "found (ms)", "", "efficiency is", "found"), rows),
        "",
        "What the curve through these sizes says of the costs:",
        "",
        *table(("scaling", "cost", "is (ms)", "found (ms)", ""), costs),
    ]
    return "\n".join(lines) + "\n"


def _row(scaling: str, ranks: int, known: float, found: float) -> tuple[str, ...]:
    return (scaling, str(ranks), f"{1e3 * known:.1f}", f"{1e3 * found:.1f}", f"{found / known - 1:+.1%}")


if __name__ == "__main__":
    main()
