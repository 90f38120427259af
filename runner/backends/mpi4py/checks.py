"""Whether the tensors of a call fit together: checked in the caller's thread, before anything is sent.

One rank sees only its own tensors: its part of what it receives must be as large as what it sends to itself. That all ranks
give the same operation, dtype and size is checked by torch itself with TORCH_DISTRIBUTED_DEBUG=DETAIL.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_OTHER = {"output": "input", "input": "output"}


def check_dense(call: str, tensors: Sequence[Tensor]) -> None:
    """Raise ValueError if a tensor is not dense, such as a sparse one."""
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise ValueError(f"{call}: a tensor of layout {tensor.layout}, where only dense ones can be sent")


def check_number(call: str, what: str, found: int, wanted: int) -> None:
    """Raise ValueError if there are more or fewer of something than needed."""
    if found != wanted:
        raise ValueError(f"{call}: {found} {what}, not {wanted}")


def check_rank(call: str, rank: int, ranks: int) -> None:
    """Raise ValueError if a group has no such rank."""
    if not 0 <= rank < ranks:
        raise ValueError(f"{call}: rank {rank} of a group that has ranks 0 to {ranks - 1}")


def check_tag(call: str, tag: int, highest: int) -> None:
    """Raise ValueError if a message cannot have this tag."""
    if not 0 <= tag <= highest:
        raise ValueError(f"{call}: tag {tag}, where this MPI has 0 to {highest}")


def check_parts(
    call: str, side: str, parts: Sequence[Tensor], single: Tensor, own: int, ranks: int, *, even: bool = False
) -> None:
    """Check a list with a tensor for each rank, against the one tensor on the call's other side.

    Args:
        side: whether the list is the "output" or the "input".
        own: the rank whose tensor in the list goes to ``single`` or comes from it on this rank.
        even: all must be of one size, as for a call whose other ranks do not know that a size differs.

    Raises:
        ValueError: another number of tensors, another dtype or device, or another number of elements.
    """
    check_number(call, f"{side}s", len(parts), ranks)
    check_dense(call, [single, *parts])
    for rank, part in enumerate(parts):
        fits = part.numel() == single.numel() or not (even or rank == own)
        if not fits or part.dtype != single.dtype or part.device != single.device:
            raise ValueError(f"{call}: {side} {rank} is {_shown(part)}, the {_OTHER[side]} {_shown(single)}")


def check_whole(call: str, side: str, whole: Tensor, part: Tensor, ranks: int) -> None:
    """Check one tensor that has a part for each rank, against the part on the call's other side.

    Raises:
        ValueError: another dtype or device, or another number of elements.
    """
    check_dense(call, [whole, part])
    if whole.numel() != part.numel() * ranks or whole.dtype != part.dtype or whole.device != part.device:
        raise ValueError(
            f"{call}: the {side} is {_shown(whole)}, which is not {ranks} times the {_OTHER[side]}, {_shown(part)}"
        )


def check_exchange(
    output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], own: int, ranks: int
) -> None:
    """Check an all_to_all of single tensors; the splits are rows per rank, none means equal parts.

    Raises:
        ValueError: another dtype or device, splits that do not fit, or a part from this rank to itself of two sizes.
    """
    call = "all_to_all"
    check_dense(call, [output, input])
    if output.dtype != input.dtype or output.device != input.device:
        raise ValueError(f"{call}: the output is {_shown(output)}, the input {_shown(input)}")
    received = _part(f"{call}: the output", output, output_splits, own, ranks)
    sent = _part(f"{call}: the input", input, input_splits, own, ranks)
    if received != sent:
        raise ValueError(f"{call}: rank {own} sends {sent} elements to itself, and receives {received}")


def _part(what: str, tensor: Tensor, splits: Sequence[int], own: int, ranks: int) -> int:
    """The elements of one rank's part."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if tensor.dim() == 0 or rows % ranks:
            raise ValueError(f"{what} has shape {tuple(tensor.shape)}, which {ranks} ranks cannot share equally")
        return tensor.numel() // ranks
    if len(splits) != ranks or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"{what} has {rows} rows, and its splits for {ranks} ranks are {list(splits)}")
    return tensor.numel() // rows * splits[own] if rows else 0


def _shown(tensor: Tensor) -> str:
    return f"{tensor.numel()} × {tensor.dtype} on {tensor.device}"
