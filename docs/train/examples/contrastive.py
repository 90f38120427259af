"""Contrastive learning: each sample is compared with those of all ranks.

python contrastive.py
mpirun -np 2 python -m runner contrastive.py
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 32
    width: int = 32
    temperature: float = 0.2


def views(count: int) -> TensorDataset:
    """Two noisy views of each of so many things."""
    draw = torch.Generator().manual_seed(1)
    things = torch.randn(count, 16, generator=draw)
    return TensorDataset(*(things + 0.3 * torch.randn(count, 16, generator=draw) for _ in range(2)))


class Gathered(torch.autograd.Function):
    """The samples of all ranks, in the order of the ranks; each rank's get gradients from the losses of all."""

    @staticmethod
    def forward(ctx: Any, samples: Tensor, run: runner.Run) -> Tensor:
        ctx.run, parts = run, [torch.empty_like(samples) for _ in range(run.data_size)]
        dist.all_gather(parts, samples.contiguous(), group=run.group())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.run.group())
        return whole.chunk(ctx.run.data_size)[ctx.run.data_rank], None


def info_nce(run: runner.Run, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """The mean over this rank's samples, each compared with the others of all ranks."""
    others: Tensor = Gathered.apply(other, run)
    pairs = torch.arange(len(one), device=one.device) + run.data_rank * len(one)
    return cross_entropy(one @ others.T / temperature, pairs)


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    net = nn.Sequential(nn.Linear(16, options.width), nn.ReLU(), nn.Linear(options.width, 8))
    encoder = run.prepare(net, optimizer=partial(torch.optim.AdamW, lr=options.lr))

    for views_of_all in run.batches(views(1600)):
        one, other = normalize(encoder(torch.cat(views_of_all)), dim=1).chunk(2)  # one call for both views
        loss = (info_nce(run, one, other, options.temperature) + info_nce(run, other, one, options.temperature)) / 2
        encoder.backward(loss)
        encoder.step()
        run.log(loss=loss)


if __name__ == "__main__":
    main()
