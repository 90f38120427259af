"""What is measured in every place for docs/results/performance.md: the commands, and what they find."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns.speed.places import Place
from tests.launching import RUNNER, ok

OPERATIONS = ("allreduce", "allgather", "reduce_scatter")
CORES = len(os.sched_getaffinity(0))
MIB = 1 << 20

BUSY = "tests.campaigns.speed.busy"
SIZES = ("--min", "4K", "--max", "16M", "--factor", "16", "--rounds", "9")
AGAINST_GLOO = ("--backend", "gloo,mpi4py")


@dataclass(frozen=True)
class Command:
    """A tool or workload and its arguments."""

    arguments: Sequence[str]
    beside: Sequence[str] = ()  # options of tests.campaigns.speed.busy, if it runs beside busy loops
    hosts: int = 2  # that a place may have at most
    makes_folder: bool = False  # for checkpoints, where --checkpoint-dir says

    def __str__(self) -> str:
        return " ".join(self.words("python", ["python", "-m", "runner"]))

    def words(self, python: str, runner: Sequence[str]) -> list[str]:
        """What each rank runs."""
        return [*([python, "-m", BUSY, *self.beside] if self.beside else []), *runner, *self.arguments]


BENCHES = {
    "idle": Command(("bench", *OPERATIONS, *SIZES)),
    "awake": Command(("bench", "--min", "4K", "--max", "4K", "--rounds", "15"), beside=("--awake",)),
    "loaded": Command(("bench", *AGAINST_GLOO, *SIZES), beside=("--load", str(CORES)), hosts=1),
}
MLP, RESNET = "8 × Linear(1024), batch 32", "ResNet-18, batch 8 at 64×64"
WORKERS = "MNIST net, batch 16, 2 data loader workers"
TRAININGS = {
    MLP: Command(("compare", "tests.campaigns.speed.mlp", "--steps", "96", "--rounds", "8"), makes_folder=True),
    RESNET: Command(
        ("compare", "workloads.resnet", "--steps", "40", "--rounds", "8", "--image-size", "64", "--batch-size", "8")
    ),
    WORKERS: Command(
        (
            *("compare", "workloads.mnist", "--steps", "96", "--rounds", "8"),
            *("--data", "digits", "--batch-size", "16", "--workers", "2"),
        ),
        makes_folder=True,
    ),
}
SHARDED = Command(("tests.campaigns.speed.sharded",))


@dataclass
class Found:
    """What one place gave.

    Attributes:
        benches: the measurements of each of ``BENCHES``.
        trainings: the engines of each of ``TRAININGS``, by name.
        sharded: how much faster each sharded step is than by gloo.
        texts: what each command printed.
    """

    benches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    trainings: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    sharded: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def allreduce(self, bench: str, size: int, backend: str, what: str = "seconds") -> float:
        """A field of a measurement: times in seconds."""
        wanted = ("allreduce", backend, size)
        return next(float(m[what]) for m in self.benches[bench] if (m["operation"], m["backend"], m["size"]) == wanted)


def measure(place: Place) -> Found:
    """Run all commands that are meant for the place, and print what they print."""
    found = Found()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(command: Command) -> str:
            file = folder / "found.json"
            runs = ("--checkpoint-dir", str(folder / "runs")) if command.makes_folder else ()
            words = [*command.words(sys.executable, RUNNER), *runs, "--json", str(file)]
            text = ok(place.launch(words)).stdout
            text = text.replace(f"wrote {file}\n", "")
            found.texts[str(command)] = text
            print(text, flush=True)
            return file.read_text()

        for title, command in BENCHES.items():
            if place.hosts <= command.hosts:
                found.benches[title] = [json.loads(line) for line in run(command).splitlines()]
        for title, command in TRAININGS.items():
            engines = json.loads(run(command))["engines"]
            found.trainings[title] = {engine["engine"]: engine for engine in engines}
        found.sharded |= json.loads(run(SHARDED))
    return found
