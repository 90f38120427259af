"""Differences between the torch releases that the runner works with. Imports no torch at load.

Each entry names the release that makes it unnecessary, so that a higher floor (``features.py``) deletes lines here. What a release
cannot do at all is refused by ``features.py``; here is what it does in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from runner.versions.torch_build import release_of, torch_build

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_RELEASE = release_of(torch_build().version)

# 2.8: before it only the server without libuv takes a socket that listens already. Tried first, libuv's would print an error.
SERVE_SOCKET: dict[str, Any] = {} if _RELEASE >= (2, 8, True) else {"use_libuv": False}

# 2.7: before it DTensors are made of what one rank sends, also where all have the same.
ALL_HAVE_IT: dict[str, Any] = {"src_data_rank": None} if _RELEASE >= (2, 7, True) else {}

# 2.7: before it DDP sends rank 0's model to all ranks, also where theirs are equal.
ARE_EQUAL: dict[str, Any] = {"init_sync": False} if _RELEASE >= (2, 7, True) else {}

# 2.7: before it a profile has only the thread that trains, and not what a backend does in others.
ALL_THREADS: dict[str, Any] = {"profile_all_threads": True} if _RELEASE >= (2, 7, True) else {}

# 2.12: from then on gloo records its collectives, of which reports of a hang tell, without being told to. Before 2.9 it cannot.
RECORDER: dict[str, str] = {"TORCH_FR_BUFFER_SIZE": "2000"} if (2, 9) <= _RELEASE < (2, 12) else {}

# 2.10: before it a pipeline always returns the last stage's outputs.
NO_OUTPUTS: dict[str, Any] = {"return_outputs": False} if _RELEASE >= (2, 10, True) else {}

# 2.12: before it a pipeline's stage is called on zeros to learn its shapes, which draws random numbers and changes its buffers.
LEARNS_SHAPES_BY_A_CALL = _RELEASE < (2, 12, True)


def known_dtypes(*names: str) -> list[torch.dtype]:
    """Return the dtypes of these names that this torch has. 2.14: before it there is no bcomplex32."""
    import torch

    return [getattr(torch, name) for name in names if hasattr(torch, name)]


class _Placed(int):
    """A rank that is sorted by its place in a group."""

    place: int

    def __lt__(self, other: int) -> bool:
        return self.place < other.place if isinstance(other, _Placed) else int(self) < other


def in_order(ranks: Sequence[int]) -> dict[str, Any]:
    """Return the arguments by which ``new_group()`` keeps the ranks in this order. 2.12: before it every group's ranks are sorted."""
    if list(ranks) == sorted(ranks):
        return {"ranks": list(ranks)}
    if _RELEASE >= (2, 12, True):
        return {"ranks": list(ranks), "sort_ranks": False}
    placed = [_Placed(rank) for rank in ranks]
    for place, rank in enumerate(placed):
        rank.place = place
    return {"ranks": placed}


def not_compiled() -> AbstractContextManager[Any]:
    """The context in which compiled modules run as they are written. 2.6: before it they are compiled."""
    if _RELEASE < (2, 6, True):
        return nullcontext()
    import torch

    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all of them together. 2.6: before it torch has it only as a part of clip_grad_norm_."""
    import torch

    if _RELEASE >= (2, 6, True):
        return torch.nn.utils.get_total_norm(gradients)
    norms = [torch.linalg.vector_norm(one) for one in gradients]
    return cast("Tensor", torch.linalg.vector_norm(torch.stack(norms)))


def clip(parameters: Iterable[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale the gradients down if their norm is above the limit. 2.6: as above."""
    import torch

    if _RELEASE >= (2, 6, True):
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
