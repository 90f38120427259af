"""The evaluation of a model that all ranks hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from runner.training.batches import evaluation_loader
from runner.training.options import TrainingOptions
from runner.training.run import Run
from runner.training.task import Task, to_device

Evaluation = tuple[float, float | None]


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Give all ranks rank 0's buffers: in training each keeps running statistics of its own batches. Collective."""
    buffers = [buffer for buffer in model.buffers() if buffer.numel()]
    if not buffers:
        return
    # As bytes: one message whatever the types, and gloo does not know all of them.
    parts = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers]
    whole = torch.cat(parts)
    dist.broadcast(whole, src=0)
    for buffer, part in zip(buffers, torch.split(whole, [part.numel() for part in parts]), strict=True):
        buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


@torch.no_grad()
def evaluate(run: Run, task: Task, model: nn.Module, options: TrainingOptions) -> Evaluation | None:
    """(mean loss, accuracy) over the test data, every sample counted once; None where there is none. Collective.

    Leaves the model in evaluation mode. The bare model is called: ranks may have different numbers of batches, which DDP's
    own forward does not allow.
    """
    if task.test_data is None:
        return None
    share_buffers(model)
    loader: DataLoader[Any] = evaluation_loader(task.test_data, run.rank, run.size, max(options.batch_size, 256))
    model.eval()
    loss_sum, correct, count = 0.0, 0, 0
    for inputs, targets in loader:
        moved, wanted = to_device(inputs, targets, run.device, getattr(torch, options.dtype))
        outputs = model(moved)
        loss_sum += task.loss(outputs, wanted).item() * len(targets)
        if task.is_classification:
            correct += int((outputs.argmax(dim=1) == wanted).sum())
        count += len(targets)
    loss_sum, hits, total = run.sum(loss_sum, correct, count)
    return loss_sum / total, hits / total if task.is_classification else None
