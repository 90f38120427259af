"""Train by every strategy and combination on 2, 4 and 8 ranks, and write by how much they differ from one process.

    python -m tests.campaigns.parity [--ranks N] [--backend NAME] [--dtype NAME] [--results FILE]

Ten steps in float64 and in float32, by gloo and mpi4py. Writes docs/results/parity.md, or with --dtype these columns of it, and
the largest of each kind into docs/train/parallelism.md; nothing if some ranks or a backend are left out. With a file for the results
what was measured before is not measured again: the whole takes an hour and a half.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from runner.parallel.settings import SCHEDULES
from tests.pages import DOCS, RESULTS, put, rows_of, table
from tests.programs.layouts.deviations import largest
from tests.turns import Turns

PAGE = RESULTS / "parity.md"
HEAD = """# As one process trains: all combinations

Written by `make parity`: by how much losses, weights and outputs differ at most from one process after ten steps (relative; the largest of all
features that a combination is tried with: all on two ranks, and on four by gloo in float64; else few). What is compared: [parallelism](../train/parallelism.md#as-one-process-trains).

"""
BACKENDS = ("gloo", "mpi4py")
RANKS = (2, 4, 8)
LIMITS = {"float64": 1e-9, "float32": 1e-5}  # of losses, weights and outputs; relative
IN_A_JOB = 24  # trainings; their process groups stay, and gloo has threads for each
SPLITTING = [name for name, schedule in SCHEDULES.items() if schedule.splits_backward]
FEATURES = {
    "plain": "",
    "factory": "--meta",
    "accumulation and clipping": "--micro-batches {m} --clip-norm 0.1",
    "frozen weights": "--frozen",
    "recomputation": "--activation-checkpointing full",
    "selective recomputation": "--activation-checkpointing selective",
    "tied weights": "--tied --meta",
    "sequence parallel": "--sequence-parallel",
    "loss parallel": "--loss-parallel",
    "both": "--sequence-parallel --loss-parallel --clip-norm 0.1",
    "offload": "--offload cpu",
    "compiled": "--compile",
    "compiled, with a divided embedding": "--compile --tied --meta",
    "compiled, divided in sequence and loss": "--compile --sequence-parallel --loss-parallel --activation-checkpointing full",
}
COMPILED = (
    "--strategy ddp",
    "--strategy fsdp",
    "--strategy zero1",
    "--strategy ddp --tp 2",
    "--strategy ddp --pp 2 --pp-schedule 1f1b",
)
Cells = dict[tuple[str, str], dict[str, str]]  # ranks and layout → column → the largest deviation
BRIEFLY = ("plain", "accumulation and clipping")  # what is tried where not all features are


def layouts(ranks: int) -> Iterator[str]:
    """The options of every combination."""
    yield from ("--strategy ddp", "--strategy fsdp", "--strategy zero1")
    if ranks > 2:
        yield "--strategy fsdp --replicate 2"
    if ranks > 4:
        yield from ("--strategy fsdp --replicate 2 --tp 2", "--strategy fsdp --replicate 2 --pp 2 --pp-schedule 1f1b")
    degrees = [(tp, pp) for tp, pp in itertools.product((1, 2, 4), (1, 2, 4)) if tp * pp > 1 and ranks % (tp * pp) == 0]
    for (tp, pp), strategy in itertools.product(degrees, ("ddp", "fsdp")):
        if ranks == tp * pp and strategy == "fsdp":
            continue  # nothing is left to shard
        for schedule in SCHEDULES if pp > 1 else [""]:
            if pp * (2 if SCHEDULES.get(schedule, SCHEDULES["1f1b"]).stages > 1 else 1) > 8:
                continue
            yield " ".join(
                [
                    f"--strategy {strategy}",
                    *([f"--tp {tp}"] if tp > 1 else []),
                    *([f"--pp {pp} --pp-schedule {schedule}"] if pp > 1 else []),
                ]
            )


def cases(ranks: int, backend: str, dtype: str) -> Iterator[tuple[str, str]]:
    """(layout, the workload's options). All features on two ranks, and on four by gloo in float64; else a few."""
    is_whole = ranks == 2 or (ranks, backend, dtype) == (4, "gloo", "float64")
    features = [*FEATURES] if is_whole else BRIEFLY[:1] if (ranks, dtype) == (8, "float32") else BRIEFLY
    for layout in layouts(ranks):
        for feature in features:
            if supports(layout, feature, ranks):
                yield layout, f"{layout} {FEATURES[feature].format(m=8)}"


def supports(layout: str, feature: str, ranks: int) -> bool:
    """Whether a combination is tried with a feature; what is refused has tests of its own."""
    match feature:
        case "tied weights":
            return not any(name in layout for name in ("zbv", "dualpipev"))  # both weights on one rank
        case "selective recomputation":
            return not any(name in layout for name in SPLITTING)
        case "sequence parallel":
            return "--tp" in layout
        case "loss parallel" | "both":
            return "--tp 2" in layout  # by four ranks the six classes cannot be divided alike
        case "offload":
            return "--strategy fsdp" in layout
        case "compiled":
            return ranks == 2 and layout in COMPILED
        case "compiled, with a divided embedding" | "compiled, divided in sequence and loss":
            return ranks == 2 and layout == "--strategy ddp --tp 2"
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=RANKS, help="these only")
    parser.add_argument("--backend", choices=BACKENDS, help="this only")
    parser.add_argument("--dtype", choices=LIMITS, help="this only")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where to continue, and to keep what is found")
    given = parser.parse_args()
    start, worst, failed = time.monotonic(), dict[tuple[int, str, str, str], float](), 0
    known = _known(given.results)
    for backend in [given.backend] if given.backend else BACKENDS:
        turns = Turns("--backend", backend)
        for ranks in [given.ranks] if given.ranks else RANKS:
            for dtype in [given.dtype] if given.dtype else LIMITS:
                for layout, options in cases(ranks, backend, dtype):
                    case = f"{backend} {ranks} {dtype} {options.strip()}"
                    if case not in known:
                        if len(known) % IN_A_JOB == 0:
                            turns.close()
                        known[case] = _deviation(turns, ranks, options, dtype)
                        _note(given.results, case, known[case])
                    found = known[case]
                    key = ranks, layout, backend, dtype
                    worst[key] = largest([worst.get(key, 0.0), found])
                    if not found < LIMITS[dtype]:
                        failed += 1
                        print(f"{ranks} ranks, {backend}, {dtype}, {options}: {found:.1e}", flush=True)
            print(
                f"{ranks} ranks by {backend}: done after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True
            )
        turns.close()
    if given.backend is None and given.ranks is None:
        old, cells = read(PAGE.read_text()) if given.dtype else {}, Cells()
        for (ranks, layout, backend, dtype), deviation in worst.items():
            key = str(ranks), layout
            cells.setdefault(key, old.get(key, {}))[f"{backend}, {dtype}"] = f"{deviation:.0e}"
        PAGE.write_text(page(cells))
        put(DOCS / "train/parallelism.md", "make parity", summary(cells))
    print(f"{len(worst)} combinations, {failed} above the limit")
    sys.exit(failed > 0)


def _known(results: Path | None) -> dict[str, float]:
    """What was found before, by case. One that failed is tried again."""
    lines = results.read_text().splitlines() if results is not None and results.exists() else []
    return {case: found for case, found in map(json.loads, lines) if math.isfinite(found)}


def _note(results: Path | None, case: str, deviation: float) -> None:
    if results is not None:
        with open(results, "a") as file:
            file.write(json.dumps([case, deviation]) + "\n")


def _deviation(turns: Turns, ranks: int, options: str, dtype: str) -> float:
    """The largest relative deviation of losses, weights and outputs; infinity if the training failed."""
    # A pipeline's batch is cut into twice as many parts as it has stages: four ranks have four or eight.
    arguments = ["--dtype", dtype, "--batch-size", "16" if "--pp 4" in options else "8", *options.split()]
    done = turns(ranks, "parity", *arguments, timeout=300)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        return float("inf")
    found = json.loads(done.stdout.partition("parity ")[2])
    return largest([found["loss"], found["weights"], found["outputs"]])


def page(cells: Cells) -> str:
    """All combinations; schedules that deviate alike share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for (ranks, layout), found in cells.items():
        combination, _, schedule = layout.partition(" --pp-schedule ")
        key = ranks, f"`{combination}`", *(found.get(column, "") for column in _columns())
        rows.setdefault(key, []).append(schedule)
    lines = [[ranks, name, ", ".join(schedules), *values] for (ranks, name, *values), schedules in rows.items()]
    return HEAD + "\n".join(table(("ranks", "combination", "schedule", *_columns()), lines)) + "\n"


def read(text: str) -> Cells:
    """What a page has, to measure some of its columns anew."""
    cells: Cells = {}
    for ranks, combination, schedules, *values in rows_of(text.splitlines()):
        for schedule in schedules.split(", "):
            layout = combination.strip("`") + (f" --pp-schedule {schedule}" if schedule else "")
            cells[ranks, layout] = dict(zip(_columns(), values, strict=True))
    return cells


def summary(cells: Cells) -> str:
    """The largest deviation of each kind of layout, whatever the degrees and the schedule."""
    kinds: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for (ranks, layout), found in cells.items():
        kinds.setdefault(re.sub(r" --pp-schedule \S+| \d+", "", layout), []).append((ranks, found))
    rows = []
    for kind, found in kinds.items():
        ranks = ", ".join(dict.fromkeys(number for number, _ in found))
        largest = (max((one.get(column, "0") for _, one in found), key=float) for column in _columns())
        rows.append([f"`{kind}`", ranks, *largest])
    return "\n".join(table(("layout", "ranks", *_columns()), rows))


def _columns() -> list[str]:
    return [f"{backend}, {dtype}" for backend in BACKENDS for dtype in LIMITS]


if __name__ == "__main__":
    main()
