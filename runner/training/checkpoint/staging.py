"""A copy of a state in the host's memory, to be written while the training changes the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runner.parallel.state import local_tensor
from runner.versions.torch_private import copy_each


class Staging:
    """Copies tensors into the host's memory, and uses that memory again for the next copy."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._layout: Sequence[object] = ()  # names, shapes and types of the last copy
        self._shards: list[Tensor] = []  # the memory of the last copy

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Copies with the same names, valid until the next call. A DTensor's are DTensors; only this rank's shard is copied."""
        layout = [*tensors, *((tensor.shape, tensor.dtype) for tensor in tensors.values())]
        if self._shards and layout == self._layout:
            # One call for all shards: for DTensors one by one the dispatcher takes longer than the copying.
            copy_each(self._shards, [local_tensor(tensor) for tensor in tensors.values()])
        else:
            self._copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            self._layout, self._shards = layout, [local_tensor(copy) for copy in self._copies.values()]
        return self._copies
