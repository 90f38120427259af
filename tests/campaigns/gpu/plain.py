"""Train ResNet or Llama by a loop without the runner, on one batch: by one process, or by DDP under torchrun.

    python -m tests.campaigns.gpu.plain resnet50 --batch-size 128 --image-size 224 --precision bf16
    torchrun --nproc-per-node 1 -m tests.campaigns.gpu.plain 1b --batch-size 8 --length 2048 --compile

Prints a line of JSON: the samples per second of one rank, and the peak of torch's allocator in bytes (0 on CPUs).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workloads.models.llama import SIZES, Llama

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="resnet18, resnet50 or a size of workloads.llama")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    parser.add_argument("--length", type=int, default=256, help="tokens per sample")
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the timing")
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed")
    given = parser.parse_args()
    device = torch.device(given.device)
    torch.manual_seed(0)
    model, inputs, targets, optimizer = _made(given, device)
    is_ddp = "RANK" in os.environ
    if is_ddp:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if given.compile:
        model.compile()

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device.type, DTYPES[given.precision], enabled=given.precision != "fp32"):
                loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
            if given.model in SIZES:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        assert math.isfinite(loss.item())  # waits for the device
        return time.perf_counter() - start

    seconds(given.warmup)
    rate = given.batch_size * given.steps / seconds(given.steps)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    print(json.dumps({"samples_per_s": rate, "peak": peak}), flush=True)
    if is_ddp:
        dist.destroy_process_group()


def _made(given: Any, device: torch.device) -> tuple[Any, Tensor, Tensor, torch.optim.Optimizer]:
    """The model, a batch and the optimizer, as the workloads make them."""
    batch = given.batch_size
    if given.model in SIZES:
        config = SIZES[given.model]
        model: Any = Llama(config).to(device)
        tokens = torch.randint(256, (batch, given.length + 1), device=device)
        adamw = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        return model, tokens[:, :-1], tokens[:, 1:], adamw
    import torchvision

    model = getattr(torchvision.models, given.model)(num_classes=1000).to(device, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, given.image_size, given.image_size, device=device)
    classes = torch.randint(1000, (batch,), device=device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, images.to(memory_format=torch.channels_last), classes, sgd


if __name__ == "__main__":
    main()
