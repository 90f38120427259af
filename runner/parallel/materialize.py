"""A model that was made on ``meta`` gets its memory and its weights, each rank its shards."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from runner.backends.gpu import is_gpu
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.pipeline.stages import PassThrough
from runner.parallel.same_start import check_digests, check_structure, digest_of
from runner.parallel.state import copy_shard
from runner.parallel.tied import shared_parameters, tie

_OR_NO_FACTORY = "give it one that initialises its parameters and buffers, as torch's modules have, or give the task a model in place of a function"
_ALIKE = "draw them by torch, random or numpy.random, which are seeded alike on all ranks"
_UNSET, _HEAD = 0xA5, 64  # a byte, and how many of them a tensor begins with that was not initialised


@torch.no_grad()
def materialize(model: nn.Module, factory: Callable[[], nn.Module], device: torch.device) -> None:
    """Allocate a model that is on ``meta``, and initialise its weights (``reset_parameters``).

    The model may be sharded: each module is initialised in full, on every rank that has a shard of it, from a seed of its name
    (and ``torch.initial_seed()``); then the rank takes its shard. So the weights do not depend on how the model is sharded,
    and no more than one full module is in memory. Collective, where there is a process group.

    Raises:
        UsageError: a module with parameters or buffers of its own has no ``reset_parameters``, or one that leaves some as
            they were, or initialises them differently on other ranks.
    """
    shared = shared_parameters(model)
    model.to_empty(device=device)
    tie(model, shared)  # to_empty() unties them (torch 2.14)
    digests: dict[str, Tensor | None] = {}
    places = dict(model.named_modules())
    with torch.device("meta"):
        full = factory()
    check_structure(full)
    names = [_joined(name, key) for name, module in full.named_modules() for key in _own_tensors(module)]
    where: dict[int, list[tuple[str, str]]] = {}  # the modules that have a tensor, of which the first initialises it
    for name, module in full.named_modules():
        for key, tensor in _own_tensors(module).items():
            where.setdefault(id(tensor), []).append((name, key))
    for name, module in full.named_modules():
        own = {key: where[id(tensor)] for key, tensor in _own_tensors(module).items()}
        wanted = {
            key: [getattr(places[place], its) for place, its in users if hasattr(places.get(place), its)]
            for key, users in own.items()
            if users[0] == (name, key)
        }
        label = f"{name or 'the model'} ({type(module).__name__})"
        if wanted and not hasattr(module, "reset_parameters"):
            with raised_on_all_ranks():  # also where the module is in another stage
                raise UsageError(f"{label} has no reset_parameters()", fix=_OR_NO_FACTORY)
        if not any(wanted.values()):  # it is in other stages
            continue
        if uninitialised := _initialise(module, name, device):
            error = UsageError(f"{label}: reset_parameters() does not initialise {uninitialised}", fix=_OR_NO_FACTORY)
            error.on_all_ranks = not any(isinstance(place, PassThrough) for place in places.values())
            raise error
        for key, shards in wanted.items():
            digests[_joined(name, key)] = digest_of(getattr(module, key))
            for shard in shards:
                copy_shard(getattr(module, key), shard)
        module.to_empty(device=torch.device("meta"), recurse=False)
    check_digests([(name, digests.get(name)) for name in names], "the weights by reset_parameters()", _ALIKE)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _initialise(module: Any, name: str, device: torch.device) -> str | None:
    """Allocate the module's own tensors, and initialise them. Returns the name of one that is left uninitialised."""
    module.to_empty(device=device, recurse=False)
    for tensor in _own_tensors(module).values():
        _head_of(tensor).fill_(_UNSET)
    digest = hashlib.sha256(f"{torch.initial_seed()} {name}".encode()).digest()
    seed, before = int.from_bytes(digest[:7], "big"), (random.getstate(), numpy.random.get_state())
    with torch.random.fork_rng([device], device_type=device.type) if is_gpu(device) else torch.random.fork_rng([]):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        module.reset_parameters()
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    tensors = _own_tensors(module).items()
    return next((key for key, tensor in tensors if tensor.numel() and bool((_head_of(tensor) == _UNSET).all())), None)


def _head_of(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)[:_HEAD]


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
