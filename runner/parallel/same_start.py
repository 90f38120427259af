"""How all ranks begin with the same model: with rank 0's, or not at all.

Shards and parts of models that differ would be trained as one, without a word.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.backends.comparing import bounds, number_of
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.support import check_shapes

_BUCKET = 64 << 20  # bytes that are sent at once
_WIDTH = 4096  # of the table of whole numbers of which a digest is made
# 2⁶⁴ ÷ the golden ratio, odd, as a signed number: multiples of it by consecutive places are far from each other.
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)


def begin_alike(model: nn.Module | Callable[[], nn.Module], device: torch.device) -> None:
    """Give all ranks rank 0's parameters and buffers; to a factory rank 0's seed, from which ``materialize`` draws. Collective.

    Only what differs is sent and written: weights that all ranks have read from the same file stay where they are.

    Args:
        device: through whose memory the tensors are sent.

    Raises:
        UsageError: the ranks' models have other parameters or buffers, some without a shape, or sparse ones.
    """
    if isinstance(model, nn.Module):
        check_shapes(model)
    if not _has_others():
        return
    if isinstance(model, nn.Module):
        check_structure(model)
        _check_dense(model)
        tensors = [*model.parameters(), *model.buffers()]
        digests = bounds([int(digest_of(tensor)) for tensor in tensors])
        broadcast((one for one, (least, most) in zip(tensors, digests, strict=True) if least < most), device)
        return
    seed = [torch.initial_seed()]
    dist.broadcast_object_list(seed, src=0, device=device)
    if seed[0] != torch.initial_seed():
        torch.manual_seed(seed[0])


@raised_on_all_ranks()
def _check_dense(model: nn.Module) -> None:
    """Refuse sparse parameters and buffers, which cannot be sent as bytes."""
    for name, one in [*model.named_parameters(), *model.named_buffers()]:
        if one.layout != torch.strided:
            raise UsageError(
                f"{name} is sparse ({_layout(one)}), and ranks cannot exchange it",
                fix="make it dense, or keep its indices and values as buffers and make it of them in forward()",
            )


@raised_on_all_ranks()
def check_structure(model: nn.Module) -> None:
    """Check that names, shapes, dtypes and layouts of parameters and buffers are those of rank 0. Collective."""
    if not _has_others():
        return
    own = [f"{name} {_described(tensor)}" for name, tensor in [*model.named_parameters(), *model.named_buffers()]]
    ((smallest, largest),) = bounds([number_of(repr(own))])
    if smallest == largest:
        return
    first: list[Any] = [own]
    dist.broadcast_object_list(first, src=0)
    pairs = itertools.zip_longest(first[0], own, fillvalue="nothing more")
    texts: list[Any] = [next((pair for pair in pairs if pair[0] != pair[1]), None)]
    ((odd, _),) = bounds([None if texts[0] is None else dist.get_rank()])
    dist.broadcast_object_list(texts, src=odd)
    raise UsageError(
        f"the ranks have made models that differ: rank 0 has {texts[0][0]}, and rank {odd} {texts[0][1]}",
        fix="make the model from the same settings on every rank",
    )


@torch.no_grad()
def broadcast(
    tensors: Iterable[Tensor], device: torch.device, group: dist.ProcessGroup | None = None, *, source: int = 0
) -> None:
    """Copy the tensors of one of a group's ranks to its others, as bytes: backends do not take all dtypes. Collective."""
    if dist.get_world_size(group) == 1:
        return
    is_source = dist.get_rank(group) == source
    for bucket in _buckets(tensor.detach() for tensor in tensors if tensor.numel()):
        pieces = [tensor.reshape(-1).view(torch.uint8).to(device) for tensor in bucket]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        dist.broadcast(whole, source if group is None else dist.get_global_rank(group, source), group)
        if is_source:
            continue
        for tensor, piece in zip(bucket, torch.split(whole, [piece.numel() for piece in pieces]), strict=True):
            tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))


@raised_on_all_ranks()
def check_digests(digests: Sequence[tuple[str, Tensor | None]], what: str, fix: str) -> None:
    """Check that the ranks have the same, by its digests. Collective.

    Args:
        digests: by name; on all ranks the same names in the same order. None for what a rank does not have.
        what: they are of, for the message.
        fix: of the message.
    """
    if not _has_others():
        return
    found = bounds([None if digest is None else int(digest) for _, digest in digests])
    odd = [name for (name, _), (smallest, largest) in zip(digests, found, strict=True) if smallest < largest]
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        raise UsageError(f"{what} are not the same on all ranks: {odd[0]}{more} differs", fix=fix)


def digest_of(tensor: Tensor) -> Tensor:
    """A number of 64 bits that changes with every single element, and when two change places.

    The tensor's bytes are taken as a table of whole numbers. Each row's and each column's sum is multiplied by an odd number of its
    own, and these are added, modulo 2⁶⁴: nearly as fast as reading the memory.
    """
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    even = raw.numel() // 8 * 8
    words = (raw[:even].clone() if raw.storage_offset() % 8 else raw[:even]).view(torch.int64)
    table, rest = torch.split(words, [words.numel() // _WIDTH * _WIDTH, words.numel() % _WIDTH])
    table = table.reshape(-1, _WIDTH)
    numbers = torch.cat([table.sum(0), table.sum(1), rest, raw[even:].to(torch.int64)])
    places = torch.arange(numbers.numel(), device=numbers.device)
    return (
        numbers * (2 * places * _MIXER + 1).square()
    ).sum()  # squares: no two places in row and column make up for two others


def _has_others() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _described(tensor: Tensor) -> str:
    layout = f", {_layout(tensor)}" if tensor.layout != torch.strided else ""
    trained = ", trained" if tensor.requires_grad else ""
    return f"({list(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}{layout}{trained})"


def _layout(tensor: Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of tensors of at most so many bytes together, or of one that has more."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.nbytes > _BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
