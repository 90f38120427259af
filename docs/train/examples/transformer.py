"""A tiny transformer on sequences of different lengths, in batches of the form that Hugging Face's collators make.

mpirun -np 2 torch-mpi-runner docs/train/examples/transformer.py --strategy fsdp --global-batch-size 16
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import runner

IGNORED = -100  # the label of a token that does not count: padding, or what the model is given
WORDS, WIDTH, HEADS, LONGEST = 32, 16, 2, 12


class Block(nn.Module):
    """Attention to the tokens before, and a layer for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(values)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        values = values + self.out(attended.transpose(1, 2).flatten(2))
        return values + self.down(F.gelu(self.up(self.norm2(values))))


class Transformer(nn.Module):
    """Takes token numbers and their mask, both [batch, length]; gives logits [batch, length, words]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        length = input_ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
        mask = before & attention_mask.bool()[:, None, None, :]
        values = self.words(input_ids) + self.places.weight[:length]
        for layer in self.layers:
            values = layer(values, mask)
        return {"logits": self.head(values)}


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Numbers that go up by a constant step; the first two are given, and the others count."""

    def __init__(self, count: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.rows = torch.stack(
            [torch.randint(low, high, (count,), generator=numbers) for low, high in ((0, WORDS), (1, 5), (4, LONGEST))],
            dim=1,
        ).tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        first, step, length = self.rows[number]
        tokens = (first + step * torch.arange(length + 1)) % WORDS
        labels = tokens[1:].clone()
        labels[:1] = IGNORED
        return {"input_ids": tokens[:-1], "labels": labels}


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Pad to the longest of the batch."""
    ids, labels = ([one[name] for one in samples] for name in ("input_ids", "labels"))
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def loss(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum over the tokens that count, and their number: the loss of a step is the mean over all ranks' tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])["logits"]
    labels = batch["labels"]
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, (labels != IGNORED).sum()


def token_accuracy(outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """How many tokens are right, and how many count."""
    labels = batch["labels"]
    return (outputs["logits"].argmax(-1) == labels).sum(), (labels != IGNORED).sum()


def task_of(options: runner.Settings) -> runner.Task:
    torch.manual_seed(options.seed)
    return runner.Task(
        model=Transformer(),
        batch_loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.lr),
        train_data=Sequences(512, seed=1),
        test_data=Sequences(101, seed=2),
        collate_fn=collate,
        metrics={"token_accuracy": token_accuracy},
        plan=runner.Plan(shard=("layers.*",)),
    )


if __name__ == "__main__":
    run = runner.start(runner.Settings.from_args())
    run.fit(task_of(run.settings))
