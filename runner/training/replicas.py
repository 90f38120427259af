"""Whether the replicas of a model are equal: they are by construction, unless memory, a network or a program is at fault."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from runner.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.trainer import Trainer
from runner.rendezvous.topology import ranks_text
from runner.training.run import Run

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_PIECE = 1 << 20  # elements
# 2⁶⁴ ÷ the golden ratio, odd, as a signed number: multiples of it by consecutive places are far from each other.
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)


@raised_on_all_ranks()
def check_option(run: Run, trainer: Trainer) -> None:
    """See that ``--check-replicas`` can be obeyed.

    Raises:
        UsageError: the ranks' parameters are not equal under this strategy.
    """
    is_divided = any(hasattr(parameter, "placements") for parameter in trainer.model.parameters())
    if is_divided or trainer.period > 1 or run.data_size != run.size:
        raise UsageError(
            "--check-replicas: the ranks do not have equal parameters here",
            fix="leave it out, or take --strategy ddp, zero1 or horovod without --tp and --pp",
        )


@raised_on_all_ranks()
@torch.no_grad()
def check_replicas(run: Run, trainer: Trainer, step: int) -> None:
    """Compare a digest of each parameter on all ranks. Collective; all ranks have the whole model.

    Raises:
        RunnerError: a parameter differs; all ranks raise it. It names the ranks that most others differ from.
    """
    named = list(trainer.model.named_parameters())
    own = torch.stack([digest_of(parameter) for _, parameter in named])
    everyone = [torch.empty_like(own) for _ in range(run.size)]
    dist.all_gather(everyone, own)
    digests = torch.stack(everyone).cpu()  # ranks × parameters
    differing = (digests != digests[0]).any(dim=0).nonzero().flatten().tolist()
    if differing:
        column = digests[:, differing[0]]
        usual = column.mode().values
        odd = [rank for rank in range(run.size) if column[rank] != usual]
        if 2 * len(odd) >= run.size:
            odd = list(range(run.size))  # no majority tells who is right
        hosts = ", ".join(dict.fromkeys(run.job.topology.records[rank].host for rank in odd))
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise RunnerError(
            f"--check-replicas: {named[differing[0]][0]}{more} differs on {ranks_text(odd)} ({hosts}) after step {step}",
            fix="go on from an earlier checkpoint; the same host again: have its memory tested",
        )


def digest_of(parameter: Tensor) -> Tensor:
    """The sum of a tensor's elements as whole numbers, each times an odd number that depends on its place, modulo 2⁶⁴.

    It changes with every single element, and when two change places.
    """
    whole = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    numbers = whole.contiguous().reshape(-1).view(_INTEGERS[whole.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for start in range(0, numbers.numel(), _PIECE):  # the whole, in eight bytes per element, may not fit
        piece = numbers[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start, start + piece.numel(), device=piece.device)
        total += (piece * (2 * places * _MIXER + 1)).sum()
    return total
