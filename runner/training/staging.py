"""A copy of a state in the host's memory, to be written while the training changes the state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Staging:
    """Copies tensors into the host's memory, and uses that memory again for the next copy."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Copies with the same names, valid until the next call. A DTensor's are DTensors; only this rank's part is copied."""
        if self._copies and _layout(tensors) == _layout(self._copies):
            # One call for all parts: for DTensors one by one the dispatcher takes longer than the copying.
            torch._foreach_copy_(_parts(self._copies), _parts(tensors))
        else:
            self._copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        return self._copies


def _layout(tensors: Mapping[str, Tensor]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]


def _parts(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors.values()]
