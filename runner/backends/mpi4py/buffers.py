"""Tensors as buffers for MPI: contiguous, not overlapping the output, and in pieces whose size fits into an int.

An MPI that accepts GPU memory gets it directly; for others it is copied through the host's pinned memory. What is reduced is
copied for Open MPI, too. Data that is only moved is moved as bytes, whatever its dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

from runner.rendezvous.methods.mpi_library import reduces_gpu_memory, takes_gpu_memory

# Bytes per call where a call can be split, and elements per buffer where it cannot: MPI 3 (Open MPI) counts in an int.
LARGEST_CALL = 1 << 30
LARGEST_COUNT = (1 << 31) - 1


def _is_in_reach(tensor: Tensor, *, reduced: bool) -> bool:
    """Whether MPI can access the tensor's memory; ``reduced``: to compute with it, not only to move it."""
    return tensor.is_cpu or (reduces_gpu_memory() if reduced else takes_gpu_memory())


def is_plain(tensor: Tensor, *, reduced: bool = False) -> bool:
    """Whether MPI can use the tensor's memory directly."""
    is_in_reach = _is_in_reach(tensor, reduced=reduced)
    return is_in_reach and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def scratch(shape: Sequence[int], dtype: torch.dtype, of: Tensor, *, reduced: bool = False) -> Tensor:
    """An empty tensor that MPI can use, for data from or to a tensor: on its device, or in the host's pinned memory."""
    if _is_in_reach(of, reduced=reduced):
        return torch.empty(shape, dtype=dtype, device=of.device)
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def as_bytes(tensor: Tensor, ranks: int = 1) -> list[Any]:
    """A buffer of the tensor's memory, to be moved; with several ranks, in equal parts, one for each.

    It does not keep the tensor alive: hold a reference until MPI is done.
    """
    size = tensor.nbytes
    return [_memory(tensor), MPI.BYTE if size <= LARGEST_COUNT else _block(size // ranks)]


def as_parts(tensor: Tensor, sizes: Sequence[int]) -> list[Any]:
    """Return the buffer in parts of the given sizes in bytes, one per rank."""
    if sum(sizes) <= LARGEST_COUNT:
        return [_memory(tensor), sizes, None, MPI.BYTE]
    unit = math.gcd(*sizes)
    return [_memory(tensor), [size // unit for size in sizes], None, _block(unit)]


def as_numbers(tensor: Tensor, datatype: MPI.Datatype) -> list[Any]:
    """A buffer of the tensor's memory, to be reduced. It does not keep the tensor alive either."""
    return [_memory(tensor), datatype]


def _memory(tensor: Tensor) -> MPI.buffer:
    if not tensor.is_cpu:
        torch.cuda.current_stream(tensor.device).synchronize()  # MPI ignores the work queued on this memory
    return MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)


@functools.cache
def _block(size: int) -> MPI.Datatype:
    """A datatype of ``size`` bytes, for buffers with more bytes than an int counts."""
    piece = min(LARGEST_CALL, size)
    pieces, rest = divmod(size, piece)
    whole = MPI.BYTE.Create_contiguous(piece)
    return MPI.Datatype.Create_struct([pieces, rest], [0, pieces * piece], [whole, MPI.BYTE]).Commit()


def pieces(tensor: Tensor) -> Sequence[Tensor]:
    """A contiguous tensor, or its parts if it is too large for an int."""
    if tensor.nbytes <= LARGEST_CALL:
        return (tensor,)
    return torch.split(tensor.view(-1), LARGEST_CALL // tensor.element_size())


def blocks_in_pieces(source: Tensor, target: Tensor, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(a part of each rank's block in the source, the same part of the target); one pair if the source fits into an int."""
    if source.numel() <= LARGEST_COUNT:
        yield source, target
        return
    step = max(1, LARGEST_COUNT // ranks)
    pieces = torch.split(source.view(ranks, -1), step, dim=1)
    for blocks, part in zip(pieces, torch.split(target.view(-1), step), strict=True):
        yield blocks.contiguous(), part


class Staged:
    """A tensor that MPI can use: the tensor itself, or a contiguous copy that is copied back at the end.

    Args:
        dtype: the copy's dtype, if it is not the tensor's.
        before: applied to the tensor before it is copied; ``after`` is applied to the result before it is copied back.
        width: how many numbers ``before`` makes of each element, in an additional last dimension.
        copy_back: if False, the tensor is not changed.
        receive_only: the tensor's own values are not needed.
        reduced: MPI computes with it.
    """

    def __init__(
        self,
        tensor: Tensor,
        dtype: torch.dtype | None = None,
        *,
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
        width: int = 1,
        copy_back: bool = True,
        receive_only: bool = False,
        reduced: bool = False,
    ) -> None:
        self._tensor, self._after, self._copy_back = tensor, after, copy_back
        dtype = dtype or tensor.dtype
        is_same = dtype == tensor.dtype and width == 1 and (before is None or receive_only)
        self._is_own = copy_back and is_same and is_plain(tensor, reduced=reduced)
        if self._is_own:
            self._data = tensor.detach() if tensor.requires_grad else tensor
        else:
            shape = (*tensor.shape, width) if width > 1 else tensor.shape
            self._data = scratch(shape, dtype, tensor, reduced=reduced)
            if not receive_only:
                source = tensor.detach()
                self._data.copy_(before(source) if before else source)

    def __enter__(self) -> Tensor:
        return self._data

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self._copy_back:
            return
        result = self._after(self._data) if self._after else self._data
        if not self._is_own:
            self._tensor.detach().copy_(result)


def sendable(tensor: Tensor, *, reduced: bool = False) -> Tensor:
    """The tensor, or a copy that MPI can use; hold a reference until MPI is done."""
    if is_plain(tensor, reduced=reduced):
        return tensor
    return scratch(tensor.shape, tensor.dtype, tensor, reduced=reduced).copy_(tensor.detach())


def apart(source: Tensor, target: Tensor) -> Tensor:
    """The source, or a copy if it shares memory with the target, which MPI forbids."""
    start, other = source.data_ptr(), target.data_ptr()
    return source.clone() if start < other + target.nbytes and other < start + source.nbytes else source


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The bytes of all parts, one after the other."""
    return torch.cat([sendable(part).reshape(-1).view(torch.uint8) for part in parts])


def scatter_into(data: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy consecutive bytes of ``data`` into the tensors."""
    start = 0
    for part in parts:
        size = part.nbytes
        if size:
            part.detach().copy_(data[start : start + size].clone().view(part.dtype).view(part.shape))
        start += size


def split_bytes(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Bytes per rank. ``splits`` are numbers of slices of the first dimension; empty means equal parts."""
    if not splits:
        return [tensor.nbytes // size] * size
    row = tensor.nbytes // tensor.shape[0] if tensor.shape[0] else 0
    return [split * row for split in splits]
