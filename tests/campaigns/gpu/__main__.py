"""Test and measure the runner on one GPU, in at most eight minutes, and write docs/results/gpu.md: make gpu

    make gpu                                    on the torch that is installed
    python -m tests.campaigns.gpu --device cpu  a rehearsal with small models; prints the page only

Runs tests/gpu, then measures in turn: ResNet and Llama by the runner, by a loop without it and by torchrun with DDP; how soon a rank
is ready; all_reduces of the MPI backend, which copies through the host's memory; what plan predicts of the peak of memory. What does not
fit into the time is left out, and the page says so.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from runner.training.metrics.speed import peak_of
from tests.launching import ROOT, clean_environment, mpirun_path
from tests.pages import RESULTS, table
from workloads.models.llama import SIZES, flops_per_token

LIMIT_SECONDS = 470.0  # for all of it
TESTS_SECONDS = 150.0
RUNNER = (sys.executable, "-m", "runner")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
COPIES = str(ROOT / "tests" / "campaigns" / "gpu" / "copies.py")
PLAIN = ("-m", "tests.campaigns.gpu.plain")
READY = "import torch, time, os; torch.ones(1, device=os.environ['PLACE']).sum().item(); print('ready')"
# By device: the ResNet with its options, the Llama with its options, and those of the runner's workloads alone.
MODELS = {
    "cuda": {
        "resnet50": ["--batch-size", "128", "--image-size", "224", "--precision", "bf16", "--compile"],
        "1b": ["--batch-size", "8", "--length", "2048", "--precision", "bf16", "--compile"],
    },
    "cpu": {"resnet18": ["--batch-size", "4", "--image-size", "64"], "debug": ["--batch-size", "4", "--length", "64"]},
}
STEPS, WARMUP = 30, 10


class Campaign:
    """The measurements, each of which gets what is left of the time."""

    def __init__(self, device: str, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        self._until = time.monotonic() + LIMIT_SECONDS
        self.notes: list[str] = []

    def run(self, *command: str, limit: float = math.inf, **environment: str) -> str:
        """Run a command; returns what it printed, "" if it failed or the time was over, which the notes then say."""
        left = min(limit, self._until - time.monotonic())
        what = " ".join(command[1:])
        if left < 1:
            self.notes.append(f"left out, as the time was over: `{what}`")
            return ""
        print(f"{self._until - time.monotonic():4.0f} s left: {what}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=clean_environment(**environment), capture_output=True, text=True, timeout=left
            )
        except subprocess.TimeoutExpired:
            self.notes.append(f"no end within {left:.0f} s: `{what}`")
            return ""
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            self.notes.append(f"exit code {done.returncode}: `{what}`: {said[-1] if said else ''}")
            print("\n".join(said[-30:]), file=sys.stderr)
            return ""
        return done.stdout

    def speeds(self) -> list[list[str]]:
        """Rows of the table of speeds: samples per second by each way, in turn."""
        rows = []
        for model, options in MODELS[self.device].items():
            ways = {
                "runner": lambda model=model, options=options: self._by_runner(model, options),
                "plain loop": lambda model=model, options=options: self._by_hand([sys.executable], model, options),
                "torchrun, DDP": lambda model=model, options=options: self._by_hand([*TORCHRUN], model, options),
            }
            rows += _rows(model, options, self._in_turn(ways), self.device)
        return rows

    def _in_turn(self, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(self.rounds):
            for way, measure in ways.items():
                if (value := measure()) > 0:
                    found[way].append(value)
        return found

    def _by_hand(self, python: list[str], model: str, options: list[str]) -> float:
        words = [
            *python,
            *PLAIN,
            model,
            *options,
            "--device",
            self.device,
            "--steps",
            str(STEPS),
            "--warmup",
            str(WARMUP),
        ]
        found = re.search(r'\{"samples_per_s".*', self.run(*words))
        return float(json.loads(found[0])["samples_per_s"]) if found else 0.0

    def _by_runner(self, model: str, options: list[str]) -> float:
        words = [*RUNNER, "--device", self.device]
        if model not in SIZES:
            channels = ["--channels-last"] if self.device == "cuda" else []
            timing = ["--warmup-batches", str(WARMUP), "--iterations", "3", "--batches-per-iteration", str(STEPS // 3)]
            printed = self.run(*words, "workloads.resnet", "--model", model, *options, *channels, *timing)
            found = re.search(r"images/s per rank: ([\d.]+)", printed)
            return float(found[1]) if found else 0.0
        with tempfile.TemporaryDirectory() as folder:
            length = int(options[options.index("--length") + 1])
            training = ["--max-steps", str(STEPS + WARMUP), "--data", "synthetic", "--save-every", "end"]
            printed = self.run(
                *words, "workloads.llama", "--size", model, *options, *training, "--checkpoint-dir", folder
            )
            found = re.search(r"([\d.]+) tokens/s", printed)
            return float(found[1]) / length if found else 0.0

    def starts(self) -> list[list[str]]:
        """Seconds from the command to a first operation on the device."""
        ways = {
            "python": [sys.executable, "-c", READY],
            "runner": [*RUNNER, "--device", self.device, "-c", READY],
            "torchrun": [*TORCHRUN, "--no-python", sys.executable, "-c", READY],
        }

        def seconds(words: list[str]) -> float:
            start = time.monotonic()
            return time.monotonic() - start if self.run(*words, PLACE=self.device) else 0.0

        found = self._in_turn({way: lambda words=words: seconds(words) for way, words in ways.items()})
        return [[way, _spread(values, "s")] for way, values in found.items()]

    def copies(self) -> list[list[str]]:
        """All_reduces by the MPI backend of two ranks that share the device."""
        words = [mpirun_path(), "-np", "2", *RUNNER, "--device", "cpu", COPIES, self.device]
        found = re.search(r'\{"seconds".*', self.run(*words))
        return [
            [f"{int(size):,}", f"{1e6 * seconds:,.0f} µs"]
            for size, seconds in (json.loads(found[0])["seconds"].items() if found else ())
        ]

    def memory(self) -> list[list[str]]:
        """The peak that plan predicts for a Llama on one GPU, and the one of the loop without the runner."""
        model, options = next((m, o) for m, o in MODELS[self.device].items() if m in SIZES)
        own = [one for one in options if one != "--compile"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            words = ["plan", "workloads.llama", "--size", model, *own, "--gpus", "1", "--memory", "140GB"]
            predicted = "not planned"
            if self.run(*RUNNER, *words, "--json", str(path)):
                layouts = json.loads(path.read_text())["layouts"]
                predicted = f"{layouts[0]['memory']['total'] / 1e9:.2f} GB" if layouts else predicted
        plain = [sys.executable, *PLAIN, model, *own, "--device", self.device, "--steps", "3", "--warmup", "2"]
        found = re.search(r'"peak": (\d+)', self.run(*plain))
        peak = int(found[1]) if found else 0
        return [[f"Llama {model}", predicted, f"{peak / 1e9:.2f} GB" if peak else "no GPU"]]


def _rows(model: str, options: list[str], found: dict[str, list[float]], device: str) -> list[list[str]]:
    per_sample, unit = 1, "images/s"
    if model in SIZES:
        per_sample, unit = int(options[options.index("--length") + 1]), "tokens/s"
    bare = found["plain loop"]
    rows = []
    for way, values in found.items():
        ratio = f"{statistics.median(values) / statistics.median(bare):.3f}" if values and bare else ""
        mfu = ""
        if model in SIZES and values and device == "cuda" and (peak := peak_of(torch.cuda.get_device_name())):
            flops = flops_per_token(SIZES[model], per_sample) * per_sample * statistics.median(values)
            mfu = f"{100 * flops / peak:.1f} %"
        rows.append([model, way, _spread([per_sample * one for one in values], unit), ratio, mfu])
    return rows


def _spread(values: list[float], unit: str) -> str:
    if not values:
        return "not measured"
    return f"{statistics.median(values):,.4g} {unit} ({min(values):,.4g} to {max(values):,.4g})"


def page(campaign: Campaign, tests: str) -> str:
    """The results, as docs/results/gpu.md."""
    name = torch.cuda.get_device_name() if campaign.device == "cuda" else "no GPU (a rehearsal)"
    models = "; ".join(f"{model} {' '.join(options)}" for model, options in MODELS[campaign.device].items())
    starts, copies, memory, speeds = campaign.starts(), campaign.copies(), campaign.memory(), campaign.speeds()
    return "\n".join(
        [
            "# One GPU",
            "",
            f"Written by `make gpu` on {date.today()}: {name}, torch {torch.__version__}, in turn {campaign.rounds} ×, median (range). "
            f"{STEPS} steps after {WARMUP}: {models}.",
            "",
            f"`tests/gpu`: {tests}",
            "",
            *table(("model", "by", "speed of a rank", "÷ plain loop", "MFU"), speeds),
            "",
            "From the command to the first operation on the device:",
            "",
            *table(("by", "seconds"), starts),
            "",
            "An all_reduce by mpi4py of two ranks that share the device; a GPU's tensor is copied to the host and back:",
            "",
            *table(("bytes", "time"), copies),
            "",
            *table(("model", "memory by plan", "peak of the plain loop"), memory),
            *(["", *(f"* {note}" for note in campaign.notes)] if campaign.notes else []),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=[*MODELS], default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of the measurements")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("make gpu: torch finds no GPU here; --device cpu rehearses", file=sys.stderr)
        return 2
    campaign = Campaign(given.device, given.rounds)
    tests = "not run in a rehearsal"
    if given.device == "cuda":
        printed = campaign.run(sys.executable, "-m", "pytest", "-q", "-x", "tests/gpu", limit=TESTS_SECONDS)
        tests = printed.strip().splitlines()[-1] if printed.strip() else "failed, or took too long (below)"
    text = page(campaign, tests)
    print(text)
    if given.device == "cuda":
        (RESULTS / "gpu.md").write_text(text)
    return 1 if campaign.notes else 0


if __name__ == "__main__":
    sys.exit(main())
