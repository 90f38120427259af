"""Knowledge distillation: a small student learns what a frozen teacher says.

python distillation.py
mpirun -np 2 python -m runner distillation.py
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax
from torch.utils.data import TensorDataset

import runner

INPUTS, CLASSES = 16, 4


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 32
    width: int = 16
    temperature: float = 2.0
    share: float = runner.option(0.7, "of the teacher in the loss")


def layers(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, CLASSES))


def samples(count: int, teacher: nn.Module) -> TensorDataset:
    """Inputs, and what the teacher would answer: labels that it is right about."""
    inputs = torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return TensorDataset(inputs, teacher(inputs).argmax(dim=1))


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    teacher = layers(256).eval().requires_grad_(False)  # in earnest: load_state_dict(torch.load(...))
    data = samples(1600, teacher)
    student = run.prepare(layers(options.width), optimizer=partial(torch.optim.AdamW, lr=options.lr))
    teacher.to(run.device, next(student.module.parameters()).dtype)  # whole on every rank: it is not prepared

    for inputs, labels in run.batches(data):
        said, taught = student(inputs) / options.temperature, teacher(inputs) / options.temperature
        soft = kl_div(log_softmax(said, dim=1), softmax(taught, dim=1), reduction="batchmean") * options.temperature**2
        hard = cross_entropy(said * options.temperature, labels)
        loss = options.share * soft + (1 - options.share) * hard
        student.backward(loss)
        student.step()
        run.log(loss=loss, soft=soft, hard=hard)


if __name__ == "__main__":
    main()
