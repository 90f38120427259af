"""XCCL, torch's backend for Intel's GPUs (oneCCL). It has not been run: no such GPU was at hand."""

from __future__ import annotations

from runner.backends.backend import Backend
from runner.job import Job


class XCCL(Backend):
    name = "xccl"
    chosen_on = ("xpu",)
    why_chosen = "for Intel's GPUs"

    def unavailable_reason(self, job: Job) -> str:
        return "" if job.placement.device == "xpu" else "no GPU of Intel's is used; run where there are some"
