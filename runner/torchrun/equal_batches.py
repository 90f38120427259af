"""Say on rank 0 that all ranks train on equal batches: a script has wrapped its model in DDP, and forgotten the DistributedSampler.

Each rank looks once at what its first training step gives to DDP, and counts it in the job's store; rank 0 reads the count after later
steps. So no rank waits for another, and nothing is drawn. Not seen: models compiled as a whole (``torch.compile(DDP(…))``), batches that
a script changes at random on each rank, and scripts that also have a stream or a distributed sampler.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from typing import Any

from runner.job import Job
from runner.torchrun.import_hooks import when_imported
from runner.torchrun.store import client_of
from runner.versions import torch_private

_LOOKED_AT = 4096  # numbers of a tensor, from all over it
_LAST_STEP = 64  # after which rank 0 looks no more; it looks at steps that are powers of two


class _Look:
    """The batches that one rank has seen so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.loaders: set[str] = set()  # kinds of samplers, "" for what may be divided
        self.steps = 0
        self.is_over = False
        self._store: Any = None
        self._key = ""

    def at_step(self, model: Any, given: Any) -> bool:
        """Look at what a model in DDP is called with, before its forward pass. Returns whether this was the last look."""
        import torch
        import torch.distributed as dist

        if not (model.training and torch.is_grad_enabled()) or not self.loaders:
            return False
        self.steps += 1
        is_divided = "" in self.loaders or dist.get_world_size(model.process_group) != self.job.size
        uses_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if is_divided or (uses_cuda and torch.cuda.is_current_stream_capturing()):
            return True
        if self.steps == 1:
            tensors = [one for one in torch_private.tree_leaves(given) if isinstance(one, torch.Tensor) and one.numel()]
            attempt = self.job.context.attempt, os.environ.get("TORCHELASTIC_RESTART_COUNT")
            seen = hashlib.sha256(b"".join(map(_sample, tensors))).hexdigest()
            self._store, self._key = client_of(self.job), f"runner: first batch {attempt} {seen}"
            self._store.add(self._key, 1)
            return self.job.rank != 0 or not tensors
        if self.steps & (self.steps - 1) != 0:
            return False
        if are_equal := self._store.add(self._key, 0) == self.job.size:
            samplers = " and a ".join(sorted(self.loaders))
            print(
                f"runner: all {self.job.size} ranks train on equal batches: their DataLoader has a {samplers}, which does "
                "not divide the data; give it sampler=DistributedSampler(dataset), and call its set_epoch() in each epoch",
                file=sys.stderr,
                flush=True,
            )
        return are_equal or self.steps >= _LAST_STEP


def _sample(tensor: Any) -> bytes:
    """A part of a tensor's numbers, the same for equal tensors."""
    flat = tensor.detach().reshape(-1)
    part = flat[:: max(1, flat.numel() // _LOOKED_AT)].cpu().double()
    return f"{tuple(tensor.shape)} ".encode() + bytes(part.numpy().tobytes())


def tell_of_equal_batches(job: Job) -> None:
    """Look at the first training steps of a program that may wrap its model in DDP. Called on all ranks."""
    if job.size == 1:
        return
    look = _Look(job)

    def before_forward(model: Any, *arguments: Any, **options: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and not look.is_over:
            try:
                look.is_over = look.at_step(model, (arguments, options))
            except Exception:  # nothing here is the concern of the program
                look.is_over = True

    def before_iteration(loader: Any) -> None:
        from torch.utils.data import DistributedSampler, IterableDataset

        samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
        may_divide = isinstance(loader.dataset, IterableDataset) or any(
            isinstance(one, DistributedSampler) for one in samplers
        )
        look.loaders.add("" if may_divide else type(loader.sampler).__name__)

    _call_before("torch.nn.parallel.distributed", "DistributedDataParallel", "forward", before_forward)
    _call_before("torch.utils.data.dataloader", "DataLoader", "__iter__", before_iteration)


def _call_before(module: str, owner: str, method: str, call: Any) -> None:
    """Have a method of a class call a function with its own arguments first."""

    def wrap() -> None:
        kind = getattr(sys.modules[module], owner)
        original = getattr(kind, method)

        @functools.wraps(original)
        def called(self: Any, *arguments: Any, **options: Any) -> Any:
            call(self, *arguments, **options)
            return original(self, *arguments, **options)

        setattr(kind, method, called)

    when_imported(module, wrap)
