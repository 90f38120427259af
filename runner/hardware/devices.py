"""The choice of the kind of device for all ranks, and of each rank's GPU."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.command_name import COMMAND
from runner.base.errors import RefusedError, UsageError
from runner.hardware.resources import Resources
from runner.launch.launchers import Launcher

DEVICES = ("auto", "cpu", "cuda", "xpu")


def common_device(hosts: Sequence[tuple[str, Sequence[Resources]]], device: str) -> str:
    """The kind of device on which all ranks compute: cpu, cuda or xpu. The backend follows from it.

    Args:
        hosts: the name of each, and its ranks' resources.
        device: one of ``DEVICES``; ``auto`` is a GPU where any rank sees one.

    Raises:
        UsageError: a GPU is asked for, and on some host none is visible.
        RefusedError: ``auto``, and hosts differ; or none has a GPU, and the scheduler has allotted some.
    """
    if device == "cpu":
        return device
    names: dict[str, list[str]] = {}  # of the hosts, by the device that their ranks would use
    for name, sharers in hosts:
        names.setdefault(next((own.gpu_device for own in sharers if own.gpus), "cpu"), []).append(name)
    reason = next((f" ({why})" for _, sharers in hosts if (why := _why_none(sharers))), "")
    if device != "auto":
        other = next((seen for seen in names if seen not in ("cpu", device)), "")
        reason = f" (there are GPUs of type {other})" if other else reason
        lacking = [name for seen, some in names.items() if seen != device for name in some]
        if lacking:
            raise UsageError(
                f"--device {device}: no GPU is visible on host{'s' * (len(lacking) > 1)} {_listed(lacking)}{reason}",
                fix="ask the scheduler for GPUs, look at CUDA_VISIBLE_DEVICES, or say --device cpu",
            )
        return device
    if len(names) > 1:
        shown = [f"{seen} on {_listed(names[seen])}" for seen in sorted(names, key="cpu".__eq__)]
        raise RefusedError(
            f"the ranks would compute on {', but '.join(shown)}, where no GPU is visible{reason}",
            fix=f"look at those hosts ({COMMAND} doctor), leave them out, or say --device cpu",
        )
    (used,) = names
    if used == "cpu":
        _refuse_allotted(hosts)
    return used


def _refuse_allotted(hosts: Sequence[tuple[str, Sequence[Resources]]]) -> None:
    """Refuse ranks that would compute on CPUs beside GPUs that are theirs."""
    for name, sharers in hosts:
        for own in sharers:
            if own.gpus_allotted and not own.gpus_hidden:
                raise RefusedError(
                    f"the scheduler has allotted GPUs to host {name} ({own.gpus_allotted}), and none can be used: "
                    f"{own.gpu_problem or 'no driver shows one'}",
                    fix="look at nvidia-smi or rocm-smi there (a container wants --nv, --rocm or --gpus all), or say --device cpu",
                )


def gpu_indices(launcher: Launcher, host: str, sharers: Sequence[Resources]) -> list[int | None]:
    """Return a GPU of its own for each rank, as an index among the GPUs that the rank sees: the first free one, if possible.

    This fits whether all ranks see all GPUs, each sees its own, or the sets overlap.

    Raises:
        RefusedError: there is none for some rank.
    """
    owners: dict[str, int] = {}  # GPU: local rank
    for rank, own in enumerate(sharers):
        if not own.gpus:
            raise RefusedError(
                f"local rank {rank} on host {host} sees no GPU, and others there do"
                + (f" ({why})" if (why := _why_none([own])) else ""),
                fix="let each rank see a GPU (look at CUDA_VISIBLE_DEVICES, and at --gpu-bind), or say --device cpu",
            )
        if not _take(rank, sharers, owners, set()):
            raise _no_gpu_left(launcher, host, sharers)
    gpus = {rank: gpu for gpu, rank in owners.items()}
    return [own.gpus.index(gpus[rank]) for rank, own in enumerate(sharers)]


def gpu_warning(sharers: Sequence[Resources], used: str) -> str:
    """Return a warning, once per host, about GPUs that its ranks do not use although --device cpu was not given; else "".

    Args:
        used: the kind of device on which all ranks compute.
    """
    for own in sharers:
        text, then = own.gpu_problem, "it is left out"
        if used == "cpu":
            then = "the ranks compute on CPUs (say --device cpu if that is meant)"
            if own.gpus_hidden:
                text = own.gpus_allotted and f"{own.gpus_allotted} allots GPUs, and {own.gpu_mask} hides them"
            elif own.gpu_mask and own.gpu_mask not in text:
                text = f"{own.gpu_mask} chooses GPUs, and none can be used: {text or 'no driver shows one'}"
        if text:
            return f"{text}; {then}"
    return ""


def _why_none(sharers: Sequence[Resources]) -> str:
    """Why ranks of a host see no GPU, as far as it is known."""
    known = (own.gpu_problem or (own.gpu_mask if own.gpus_hidden else "") for own in sharers if not own.gpus)
    return next(filter(None, known), "")


def _take(rank: int, sharers: Sequence[Resources], owners: dict[str, int], tried: set[str]) -> bool:
    """Give a rank a free GPU, or one whose owner can take another (augmenting paths, as in bipartite matching)."""
    gpus = sharers[rank].gpus
    for gpu in (*(gpu for gpu in gpus if gpu not in owners), *gpus):
        if gpu not in tried:
            tried.add(gpu)
            if gpu not in owners or _take(owners[gpu], sharers, owners, tried):
                owners[gpu] = rank
                return True
    return False


def _no_gpu_left(launcher: Launcher, host: str, sharers: Sequence[Resources]) -> RefusedError:
    gpus = sorted({gpu for own in sharers for gpu in own.gpus})
    problem = next((f" ({own.gpu_problem})" for own in sharers if own.gpu_problem), "")
    text = f"{len(sharers)} ranks on host {host} but {len(gpus)} GPU{'s' * (len(gpus) > 1)}{problem}"
    flag = launcher.ranks_per_host.format(n=len(gpus)) or "fewer ranks"
    fix = f"start {len(gpus)} per host ({flag}), or say --device cpu"
    if len(gpus) >= len(sharers):
        text = f"the {len(sharers)} ranks on host {host} cannot have a GPU each: some see only one that others see, too"
        fix = "let each see its own, or all of them (--gpus-per-node and --gpu-bind=none), or say --device cpu"
    elif any(gpu.startswith("MIG-") for gpu in gpus):
        text += ": CUDA shows a process one MIG instance, the first"
        fix = f"give each rank one of its own (CUDA_VISIBLE_DEVICES=MIG-…), {fix}"
    return RefusedError(text, fix=fix)


def _listed(names: Sequence[str], most: int = 4) -> str:
    """``host1, host2, host3, host4 and 5 more``"""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
