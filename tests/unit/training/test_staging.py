"""The copy of a state that is written while the training changes the state."""

from __future__ import annotations

import torch

from runner.training.checkpoint.checkpoints import Staging


def test_a_copy_keeps_its_values_and_the_next_one_takes_its_memory() -> None:
    staging, weights = Staging(), {"weight": torch.ones(3, requires_grad=True), "steps": torch.tensor(1)}
    first = dict(staging.copy(weights))
    with torch.no_grad():
        weights["weight"] += 1
    assert first["weight"].tolist() == [1, 1, 1]
    second = staging.copy(weights)
    assert second["weight"].tolist() == [2, 2, 2]
    assert second["weight"].data_ptr() == first["weight"].data_ptr()
    assert second["weight"].data_ptr() != weights["weight"].data_ptr()


def test_tensors_may_come_and_change_their_shape() -> None:
    staging = Staging()
    assert staging.copy({}) == staging.copy({}) == {}
    for tensors in (
        {"weight": torch.ones(3)},
        {"weight": torch.ones(2)},
        {"weight": torch.ones(2), "more": torch.ones(1)},
    ):
        assert {name: copy.shape for name, copy in staging.copy(tensors).items()} == {
            name: tensor.shape for name, tensor in tensors.items()
        }
