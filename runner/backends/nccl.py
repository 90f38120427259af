"""NCCL, for NVIDIA's GPUs; torch for ROCm has AMD's RCCL under the same name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from runner.backends.backend import Backend
from runner.backends.fabric import fast_networks, nccl_log, nccl_network, slow_choice
from runner.job import Job


class NCCL(Backend):
    name = "nccl"
    chosen_on = ("cuda",)
    why_chosen = "for GPUs"
    binds_device = True

    def unavailable_reason(self, job: Job) -> str:
        return "" if job.placement.device == "cuda" else "no GPU is used; run where there are some"

    @contextmanager
    def starting(self, job: Job) -> Iterator[None]:
        """Have rank 0 say which network NCCL has chosen. A user's own NCCL_DEBUG stays as it is."""
        if job.rank != 0 or len(job.topology.hosts) == 1:
            yield
            return
        with nccl_log() as log:
            yield
            network = nccl_network(log.read_text(errors="replace")) if log else None
        if network is not None:
            slow = slow_choice(network, fast_networks())
            print(f"runner: {network}{f'; {slow}' if slow else ''}", file=sys.stderr, flush=True)
