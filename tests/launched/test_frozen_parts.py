"""Parameters that are not trained get no gradient and no optimizer state, also beside trained ones in a unit of fsdp."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok, path_of, runner
from tests.layouts import FSDP

REST, HEAD = "2.weight 2.bias 4.weight 4.bias", "4.weight 4.bias"


@pytest.mark.parametrize("strategy", ["ddp", FSDP])
def test_what_is_frozen_gets_nothing(strategy: str, tmp_path: Path) -> None:
    """And in ``model.frozen()`` nothing is added to the gradients that are there."""
    options = [f"--strategy={strategy}", "--max-steps=2", f"--checkpoint-dir={tmp_path}"]
    done = ok(runner(2, path_of("frozen_parts"), *options))
    of_a_step = [f"apart gradients: {REST}", f"apart state: {REST}"]
    of_a_step += [f"together gradients: {HEAD}", f"together state: {HEAD}"]
    of_a_step += ["judge: same gradients True; maker: weight bias"]
    assert done.stdout.splitlines()[:10] == 2 * of_a_step
