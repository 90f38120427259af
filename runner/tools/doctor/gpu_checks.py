"""GPUs: which rank sees which, and whether driver, torch and NCCL fit together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from runner.job import Job
from runner.tools.doctor.examine import Team, Verdict, counted, fail, grouped, ok, warn, where

# Variables by which schedulers and users assign GPUs to this process.
_PROMISES = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "GPU_DEVICE_ORDINAL")
_NO_GPUS = ("", "-1", "0x0", "NoDevFiles", "(null)")


def gpus(job: Job, team: Team) -> Verdict:
    """Whether each rank has a GPU of its own that torch can use, and whether NCCL and drivers are the same everywhere."""
    seen = job.topology.records[job.rank].resources["gpus"]
    own: dict[str, Any] = {"promised": "", "driver": "", "mig": False, "torch": "", "nccl": ""}
    if seen and job.device != "cpu":
        own.update(_driver(seen), **_torch(job.placement.torch_device))
    else:
        names = [name for name in _PROMISES if os.environ.get(name, "") not in _NO_GPUS]
        own["promised"] = f"{names[0]}={os.environ[names[0]]}" if names else ""
    return judge_gpus(job, [record.resources["gpus"] for record in job.topology.records], team.gather(own))


def judge_gpus(job: Job, seen: Sequence[Sequence[str]], found: Sequence[dict[str, Any]]) -> Verdict:
    """The verdict on the GPUs that each rank sees (by UUID), and on what each found out about them."""
    topology = job.topology
    if job.device == "cpu":
        return ok("not used: --device cpu")
    promised = [rank for rank, one in enumerate(found) if one["promised"]]
    if promised:
        return warn(
            f"{found[promised[0]]['promised']} on {where(promised, topology)}, but no GPU is to be seen there",
            "look at nvidia-smi on that host; in a container start it with --nv (Apptainer) or --gpus all (Docker)",
        )
    without = [rank for rank, own in enumerate(seen) if not own]
    if len(without) == len(seen):
        return ok("none: the job computes on cores")
    if without:
        return fail(
            f"no GPU on {where(without, topology)}, while others see some",
            "ask for as many GPUs on every host (--gpus-per-node), and look at CUDA_VISIBLE_DEVICES there",
        )
    for host in topology.hosts:
        here = sorted({gpu for rank in host.ranks for gpu in seen[rank]})
        if len(here) < len(host.ranks):
            flag = job.context.launcher.ranks_per_host.format(n=len(here)) or f"start {len(here)} per host"
            return fail(
                f"{len(host.ranks)} ranks on {host.name} share {counted(len(here), 'GPU')}, {', '.join(here)[:90]}; NCCL refuses that",
                f"{flag}, or give each rank its own (--gpus-per-task, --gpu-bind=none with --gpus-per-node)",
            )
    broken = [rank for rank, one in enumerate(found) if one["torch"]]
    if broken:
        return fail(
            f"{found[broken[0]]['torch']} on {where(broken, topology)}",
            "see the CUDA wheels of this torch, and the driver that they ask for",
        )
    for name, title in (("driver", "the driver"), ("nccl", "NCCL")):
        if len({one[name] for one in found}) > 1:
            return warn(
                f"{title} differs: {grouped([one[name] for one in found], topology)}",
                "use hosts and environments of one kind",
            )
    text = f"{counted(len(set().union(*seen)), 'GPU')}, driver {found[0]['driver']}, NCCL {found[0]['nccl'] or 'none'}"
    divided = [rank for rank, one in enumerate(found) if one["mig"]]
    if divided:
        return warn(
            f"{text}; MIG is on for {where(divided, topology)}",
            "NCCL takes one slice per process and no two of the same GPU: ask for whole GPUs to train on several",
        )
    return ok(text)


def _driver(seen: Sequence[str]) -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "mig": any(gpu.startswith("MIG-") for gpu in seen) or any(map(_is_divided, seen)),
        }
    finally:
        pynvml.nvmlShutdown()


def _is_divided(uuid: str) -> bool:
    import pynvml

    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:  # this GPU does not support MIG
        return False
    return bool(mode == pynvml.NVML_DEVICE_MIG_ENABLE)


def _torch(device: str) -> dict[str, str]:
    """Why torch cannot use the GPU ("" if it can), and the version of its NCCL."""
    import torch

    if torch.version.cuda is None:
        return {"torch": f"torch {torch.__version__} was built without CUDA", "nccl": ""}
    try:
        torch.zeros(1, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:
        return {"torch": f"torch cannot use the GPU ({' '.join(str(error).split())[:200]})", "nccl": ""}
    version_of_nccl: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    nccl = version_of_nccl() if torch.distributed.is_nccl_available() else ()
    return {"torch": "", "nccl": ".".join(map(str, nccl))}
