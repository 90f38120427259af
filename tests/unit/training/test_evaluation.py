"""The accuracy: what is counted, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from runner.training.evaluation import hits

SURE = torch.eye(3) * 9  # row c is for class c


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        (SURE, torch.tensor([0, 1, 1]), (2, 3)),
        (SURE, torch.tensor([0, 1, 1], dtype=torch.uint8), (2, 3)),
        (SURE, torch.tensor([0, -100, 255]), (1, 1)),  # two are ignored
        (SURE.T[None].expand(2, 3, 3), torch.tensor([[0, 1, 2], [2, 1, 0]]), (4, 6)),  # tokens
        (SURE.T.reshape(1, 3, 1, 3), torch.tensor([[[0, 1, 1]]]), (2, 3)),  # pixels
        (torch.zeros(2, 1), torch.zeros(2, 1), None),  # binary, by one logit
        (torch.zeros(2), torch.zeros(2), None),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), None),
        (torch.zeros(2, 1, 4), torch.zeros(2, 4, dtype=torch.int64), None),  # of one class always the same wins
        (SURE, SURE, None),  # soft targets
        (SURE, SURE.long(), None),  # several labels per sample
        (SURE, torch.tensor([True, False, True]), None),
        (SURE * 1j, torch.tensor([0, 1, 2]), None),
        ((SURE, SURE), torch.tensor([0, 1, 2]), None),
    ],
)
def test_hits(outputs: Any, targets: Tensor, expected: tuple[int, int] | None) -> None:
    assert hits(outputs, targets) == expected
