"""gloo by another name, and with a library's manners: it is registered when torch is imported, and takes turns."""

import os
from typing import Any

from runner.backends.backend import Backend, Finding
from runner.job import Job
from runner.torchrun.import_hooks import when_imported


class Pigeon(Backend):
    name = "pigeon"
    title = "Pigeon"

    def unavailable_reason(self, job: Job) -> str:
        return os.environ.get("CAT", "")

    def prepare(self, job: Job) -> None:
        when_imported("torch.distributed", register)

    def examine(self, job: Job) -> Finding:
        return Finding("one per rank")


def register() -> None:
    import torch.distributed as dist

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("pigeon", create, devices=["cpu"])
