"""Contrastive learning: each sample is compared with those of all ranks.

python contrastive.py
mpirun -np 2 python -m runner contrastive.py
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
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


def info_nce(run: runner.Run, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Of this rank's samples the mean, over the others of all ranks: the mean over the ranks is the loss of the whole batch.

    The gathered samples have gradients. Those of this rank's come from all ranks' losses; ``backward`` averages over the ranks.
    """
    others = torch.cat(all_gather(other, group=run.group()))
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
