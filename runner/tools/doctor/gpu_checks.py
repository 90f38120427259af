"""GPUs: which rank sees which, and whether driver, torch and NCCL fit together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runner.hardware import nvml
from runner.hardware.resources import Resources, of_record
from runner.job import Job
from runner.tools.doctor.examine import Team, Verdict, counted, fail, grouped, ok, warn, where


def gpus(job: Job, team: Team) -> Verdict:
    """Check that each rank has its own GPU that torch can use, and that NCCL and drivers are the same everywhere."""
    own: dict[str, Any] = {"driver": "", "mig": False, "order": "", "torch": "", "nccl": ""}
    records = [of_record(record.resources) for record in job.topology.records]
    record = records[job.rank]
    if record.gpus and job.device != "cpu":
        # The job itself may be on CPUs, where its ranks do not fit their GPUs.
        own.update(_driver(record.gpus), **_torch(f"{record.gpu_device}:{job.placement.device_index or 0}"))
    return judge_gpus(job, records, team.gather(own))


def judge_gpus(job: Job, records: Sequence[Resources], found: Sequence[dict[str, Any]]) -> Verdict:
    """Judge each rank's resources, and what each rank found out."""
    topology = job.topology
    if job.device == "cpu":
        return ok("not used: --device cpu")
    seen = [record.gpus for record in records]
    without = [rank for rank, gpus in enumerate(seen) if not gpus]
    if len(without) == len(seen):
        return _judge_none(job, records)
    if without:
        return fail(
            f"no GPU on {where(without, topology)}, while others see some{_problem_of(records, without)}",
            "ask for as many GPUs on every host (--gpus-per-node), and look at CUDA_VISIBLE_DEVICES there",
        )
    for host in topology.hosts:
        here = sorted({gpu for rank in host.ranks for gpu in seen[rank]})
        if len(here) < len(host.ranks):
            flag = job.context.launcher.ranks_per_host.format(n=len(here)) or f"start {len(here)} per host"
            return fail(
                f"{len(host.ranks)} ranks on {host.name} share {counted(len(here), 'GPU')}, {', '.join(here)[:90]}; NCCL "
                f"refuses that{_problem_of(records, host.ranks)}",
                f"{flag}, or give each rank its own (--gpus-per-task, --gpu-bind=none with --gpus-per-node)",
            )
    broken = [rank for rank, one in enumerate(found) if one["torch"]]
    if broken:
        return fail(
            f"{found[broken[0]]['torch']} on {where(broken, topology)}",
            "see the CUDA wheels of this torch, and the driver that they ask for",
        )
    silent = [rank for rank, record in enumerate(records) if record.gpu_problem]
    if silent:
        return warn(
            f"{records[silent[0]].gpu_problem} on {where(silent, topology)}",
            "look at nvidia-smi and dmesg there, and leave that host out",
        )
    for name, title in (("driver", "the driver"), ("nccl", "NCCL")):
        if len({one[name] for one in found}) > 1:
            return warn(
                f"{title} differs: {grouped([one[name] for one in found], topology)}",
                "use hosts and environments of one kind",
            )
    text = f"{counted(len(set().union(*seen)), 'GPU')}, driver {found[0]['driver'] or 'unknown'}, NCCL {found[0]['nccl'] or 'none'}"
    in_mig_mode = [rank for rank, one in enumerate(found) if one["mig"]]
    if in_mig_mode:
        return warn(
            f"{text}; MIG is on for {where(in_mig_mode, topology)}",
            "NCCL takes one slice per process and no two of the same GPU: ask for whole GPUs to train on several",
        )
    unordered = [rank for rank, one in enumerate(found) if one["order"]]
    if unordered:
        return warn(
            f"{text}; {found[unordered[0]]['order']} on {where(unordered, topology)}: CUDA numbers the fastest first, nvidia-smi "
            "by PCI address",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID where GPUs are chosen by number",
        )
    return ok(text)


def _judge_none(job: Job, records: Sequence[Resources]) -> Verdict:
    """Judge a job in which no rank sees a GPU: some may have been promised."""
    fix = (
        "look at nvidia-smi or rocm-smi on that host; a container wants --nv or --rocm (Apptainer), --gpus all or "
        "--device (Docker)"
    )
    for judge, field in ((fail, "gpus_allotted"), (warn, "gpu_mask"), (warn, "gpu_problem")):
        ranks = [rank for rank, record in enumerate(records) if getattr(record, field) and not record.gpus_hidden]
        if ranks:
            text = f"{getattr(records[ranks[0]], field)} on {where(ranks, job.topology)}"
            if field != "gpu_problem":
                text += f", but no GPU is to be seen there{_problem_of(records, ranks)}"
            return judge(text, fix)
    hidden = [rank for rank, record in enumerate(records) if record.gpus_hidden]
    if hidden:
        return ok(f"none: {records[hidden[0]].gpu_mask} hides them on {where(hidden, job.topology)}")
    return ok("none: the job computes on cores")


def _problem_of(records: Sequence[Resources], ranks: Sequence[int]) -> str:
    return next((f" ({problem})" for rank in ranks if (problem := records[rank].gpu_problem)), "")


def _driver(seen: Sequence[str]) -> dict[str, Any]:
    """Return NVML's report: the driver's version, whether GPUs are in MIG mode, and whether their order is uncertain."""
    # GPUs of another maker, a container without the driver's library, or a driver that does not show it these GPUs.
    with contextlib.suppress(Exception), nvml.started() as library:
        models = {str(library.nvmlDeviceGetName(handle)) for handle in _handles(library)}
        is_ordered = len(models) < 2 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return {
            "driver": str(library.nvmlSystemGetDriverVersion()),
            "mig": any(gpu.startswith("MIG-") or _is_in_mig_mode(library, gpu) for gpu in seen),
            "order": "" if is_ordered else f"GPUs of different models ({', '.join(sorted(models))})",
        }
    return {}


def _handles(library: Any) -> Iterator[Any]:
    for index in range(library.nvmlDeviceGetCount()):
        with contextlib.suppress(library.NVMLError):  # broken, or another job's
            yield library.nvmlDeviceGetHandleByIndex(index)


def _is_in_mig_mode(library: Any, uuid: str) -> bool:
    with contextlib.suppress(library.NVMLError):  # a name that is no UUID
        return nvml.is_in_mig_mode(library, library.nvmlDeviceGetHandleByUUID(uuid))
    return False


def _torch(device: str) -> dict[str, str]:
    """Return why torch cannot use the GPU ("" if it can), and the version of its NCCL."""
    import torch

    try:
        torch.zeros(1, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:
        return {"torch": f"torch cannot use the GPU ({' '.join(str(error).split())[:200]})", "nccl": ""}
    version_of_nccl: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    has_nccl = device.startswith("cuda") and torch.distributed.is_nccl_available()
    return {"torch": "", "nccl": ".".join(map(str, version_of_nccl())) if has_nccl else ""}
