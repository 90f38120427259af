"""Fine-tuning: a backbone is frozen, and a new head is trained by the runner's loop.

python finetune.py
mpirun -np 2 python -m runner finetune.py
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import runner

INPUTS, CLASSES = 16, 4


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 32
    lr: float = 1e-2
    width: int = 64


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


def samples(count: int, seed: int) -> TensorDataset:
    """The class is the quadrant of the first two numbers."""
    inputs = torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, 0] > 0) + 2 * (inputs[:, 1] > 0))


def in_top_two(outputs: Tensor, classes: Tensor) -> Tensor:
    return (outputs.topk(2, dim=1).indices == classes[:, None]).any(dim=1).double().mean()


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    model = Classifier(options.width)
    # In earnest: model.backbone.load_state_dict(torch.load(...))
    model.backbone.requires_grad_(False)
    task = runner.Task(
        model=model,
        loss=cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=options.lr),  # of what is not frozen
        train_data=samples(1600, seed=1),
        test_data=samples(320, seed=2),
        metrics={"in_top_two": in_top_two},
    )
    run.fit(task)


if __name__ == "__main__":
    main()
