"""What the tests of models that are sharded share: their jobs import the same parts of torch, which takes them the most time."""

from __future__ import annotations

from tests.turns import turns_fixture

turns = turns_fixture(
    "package", TORCHINDUCTOR_COMPILE_THREADS="1"
)  # else --compile starts processes that import torch, too
