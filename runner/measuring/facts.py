"""With what was measured: hosts, cores, device, versions, date."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from runner.job import Job

_FILE = "facts.json"


def facts_of(job: Job) -> dict[str, Any]:
    """Of this job, as this rank knows them. To be called where torch may be imported."""
    record = job.topology.records[0]
    return {
        "hosts": len(job.topology.hosts),
        "cores": os.cpu_count() or 1,  # of a host
        "device": _device(job),
        "versions": ", ".join(f"{name} {getattr(record, name)}" for name in ("runner", "python", "torch")),
        "when": time.strftime("%Y-%m-%d"),
    }


def _device(job: Job) -> str:
    kind = job.placement.device
    if kind == "cpu":
        return kind
    import torch

    return str(getattr(torch, kind).get_device_name(job.placement.torch_device))


def write_facts(job: Job, folder: Path) -> None:
    (folder / _FILE).write_text(json.dumps(facts_of(job)), encoding="utf-8")


def read_facts(folder: Path) -> dict[str, Any]:
    """Of a measured run that has ended.

    Raises:
        OSError: it has left none.
    """
    facts: dict[str, Any] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    return facts


def hardware_text(facts: dict[str, Any]) -> str:
    """``2 hosts of 64 cores, NVIDIA H100 80GB HBM3``; "" if nothing is known."""
    if "hosts" not in facts:
        return ""
    return f"{facts['hosts']} host{'s' * (facts['hosts'] > 1)} of {facts['cores']} cores, {facts['device']}"
