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

from runner.tools.scale.study import STRONG, WEAK, Study, read_study
from tests.launching import RUNNER, folder_of, mpirun_path, ok, run
from tests.pages import RESULTS, table

KNOWN = {"c": 1.6, "a": 0.02, "b": 0.005}  # seconds
BATCH = {STRONG: "--global-batch-size=256", WEAK: "--batch-size=32"}
_PATIENCE = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--predicted", default="64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/results/scaling.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = {scaling: study(Path(folder), scaling, given.ranks, given.rounds) for scaling in BATCH}
        large = {scaling: study(Path(folder), scaling, given.predicted, given.rounds) for scaling in BATCH}
    text = page(small, large)
    print(text)
    if given.write:
        (RESULTS / "scaling.md").write_text(text)


def study(folder: Path, scaling: str, ranks: str, rounds: int) -> Study:
    """Measure these sizes."""
    words = [f"--ranks={ranks}", "--steps=10", "--warmup=2", f"--rounds={rounds}", "--json=study.json", "--"]
    words += [mpirun_path(), "--map-by", ":OVERSUBSCRIBE", "-np", "{ranks}", *RUNNER, "known_costs", BATCH[scaling]]
    ok(run(*RUNNER, "scale", *words, cwd=folder, timeout=_PATIENCE, PYTHONPATH=folder_of("known_costs").as_posix()))
    return read_study(folder / "study.json")


def seconds(scaling: str, ranks: int) -> float:
    """Of a step, as it is known."""
    computing = KNOWN["c"] / ranks if scaling == STRONG else KNOWN["c"] / 8
    return computing + (KNOWN["a"] + KNOWN["b"] * ranks if ranks > 1 else 0.0)


def page(small: dict[str, Study], large: dict[str, Study]) -> str:
    rows, costs = [], []
    for scaling, measured in small.items():
        found = measured.fit()
        assert found is not None
        for size in measured.measured:
            work = size.ranks if scaling == WEAK else 1
            known = work * seconds(scaling, 1) / seconds(scaling, size.ranks) / size.ranks
            rows.append(_row(scaling, size.ranks, seconds(scaling, size.ranks), size.seconds))
            rows[-1] += (f"{known:.1%}", f"{measured.efficiency(size):.1%}")
        for size in large[scaling].measured:
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
