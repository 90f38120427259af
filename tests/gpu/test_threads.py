"""On two GPUs, not run yet: no thread of a rank makes a context on the other rank's GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.launching import folder_of, ok, runner


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
@pytest.mark.parametrize("backend", ["nccl", "mpi4py"])
def test_a_rank_keeps_to_its_gpu(backend: str, tmp_path: Path) -> None:
    options = ["--strategy", "fsdp", "--save-async", "--backend", backend, "--checkpoint-dir", str(tmp_path)]
    done = ok(runner(2, "keeps_to_its_gpu", *options, cwd=folder_of("keeps_to_its_gpu"), timeout=300))
    for rank in range(2):
        assert f"rank {rank}: contexts on others: []" in done.stdout
