"""NCCL, for NVIDIA's GPUs; torch for ROCm has AMD's RCCL under the same name."""

from __future__ import annotations

from runner.backends.backend import Backend
from runner.job import Job


class NCCL(Backend):
    name = "nccl"
    chosen_on = ("cuda",)
    why_chosen = "for GPUs"
    binds_device = True

    def unavailable_reason(self, job: Job) -> str:
        return "" if job.placement.device == "cuda" else "no GPU is used; run where there are some"
