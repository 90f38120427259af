"""Scripts written for DeepSpeed, unmodified, without its launcher and without a hostfile."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.launching import ok, path_of, runner
from tests.polling import LIMIT


@pytest.fixture(scope="module")
def extensions() -> Path:
    """Where DeepSpeed's extension for CPUs is, which it compiles at its first start: a minute, once per environment.

    It is compiled elsewhere and renamed, as a build that is killed leaves a lock for which the next one waits.
    """
    folder = Path(sys.prefix, f"deepspeed-{version('deepspeed')}-torch-{version('torch')}")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix, ignore_cleanup_errors=True) as new:
            trained(Path(new), 2, "--steps", "1")
            with contextlib.suppress(OSError):  # another process has been faster
                Path(new).rename(folder)
    return folder


def trained(extensions: Path, ranks: int, *arguments: str) -> list[list[float]]:
    """The losses that each training of the script prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as in an activated environment: it calls ninja
    settings = {"PATH": path, "TORCH_EXTENSIONS_DIR": str(extensions)}
    done = ok(runner(ranks, path_of("train_deepspeed"), *arguments, timeout=3 * LIMIT, **settings))
    lines = [line for line in done.stdout.splitlines() if line.startswith("losses ")]
    return [[float(loss) for loss in line.split()[1:]] for line in lines]


def test_every_stage_of_zero_has_the_losses_of_data_parallelism(extensions: Path) -> None:
    """Stage 0 is plain data parallelism."""
    expected, *of_stages = trained(extensions, 2, "--stages", "0", "1", "2", "3")
    assert len(expected) == 6
    assert expected[-1] < 0.9 * expected[0]
    assert len(of_stages) == 3
    for losses in of_stages:
        assert losses == pytest.approx(expected, rel=1e-5)


def test_two_way_data_parallel_two_stages_eight_micro_batches(extensions: Path, tmp_path: Path) -> None:
    """The slides' pipeline, by DeepSpeed's own PipelineModule and a file with its configuration."""
    file = tmp_path / "ds_config.json"
    optimizer = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}
    file.write_text(json.dumps({"train_batch_size": 32, "gradient_accumulation_steps": 8, "optimizer": optimizer}))
    (losses,) = trained(extensions, 4, f"--deepspeed_config={file}", "-p", "2")
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
