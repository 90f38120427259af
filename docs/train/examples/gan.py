"""A GAN: two models with an optimizer each. The generator learns to draw points of a circle.

python gan.py
mpirun -np 2 python -m runner gan.py --strategy fsdp
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import runner

NOISE = 4  # numbers that the generator makes a point of


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 16
    lr: float = 2e-3
    width: int = 32


def points(count: int) -> TensorDataset:
    angle = torch.rand(count, generator=torch.Generator().manual_seed(1)) * 2 * torch.pi
    return TensorDataset(torch.stack([angle.cos(), angle.sin()], dim=1))


def layers(inputs: int, width: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, outputs))


def noise(run: runner.Run, like: Tensor) -> Tensor:
    """Drawn for the batch of all ranks, of which this one takes its part: so it is the same on any number of them."""
    draw = torch.Generator().manual_seed(run.step)
    whole = torch.randn(run.data_size, len(like), NOISE, generator=draw, dtype=torch.float64)
    return whole[run.data_rank].to(like)


def bce(logits: Tensor, target: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    adam = partial(torch.optim.Adam, lr=options.lr, betas=(0.5, 0.999))
    generator = run.prepare(layers(NOISE, options.width, 2), optimizer=adam, name="generator")
    discriminator = run.prepare(layers(2, options.width, 1), optimizer=adam, name="discriminator")

    for (real,) in run.batches(points(1600)):
        fake = generator(noise(run, real))

        told_apart = bce(discriminator(real), 1.0) + bce(discriminator(fake.detach()), 0.0)
        discriminator.backward(told_apart)
        discriminator.step()

        with discriminator.frozen():  # gradients flow through it, and it gets none
            loss = bce(discriminator(fake), 1.0)
        generator.backward(loss)
        generator.step()
        run.log(loss=loss, discriminator=told_apart)


if __name__ == "__main__":
    main()
