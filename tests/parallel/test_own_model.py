"""The model of docs/parallelism.md, outside of this repository, with a plan of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import ROOT, ok
from tests.results import metrics
from tests.turns import Turns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the document's code is ``mymodel.py``."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parallelism.md").read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("own")
    (folder / "mymodel.py").write_text(code)
    return folder


def test_it_trains_alike_in_every_layout(folder: Path, turns: Turns) -> None:
    curves = []
    options = ["--global-batch-size=16", "--dtype=float64", "--max-steps=6", "--log-every=1"]
    for ranks, layout in ((1, ""), (4, "--strategy fsdp --tp 2"), (4, "--tp 2 --pp 2 --micro-batches 4")):
        to = folder / f"out{len(curves)}"
        ok(turns(ranks, "mymodel", *options, *layout.split(), f"--checkpoint-dir={to}", cwd=folder))
        curves.append([line["loss"] for line in metrics(to)])
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)
    assert curves[2] == pytest.approx(curves[0], rel=1e-9)
