"""Every family of layers and every optimizer of torch trains under each strategy as in one process, or is refused in one line."""

from __future__ import annotations

import json

import pytest

from tests.campaigns.sweep.cases import CASES
from tests.launching import ROOT, ok
from tests.turns import Turns

SPARSE = "layer gives sparse gradients, which a sharded model cannot exchange"
LAZY = "layer.weight has no shape yet, as lazy modules get theirs in their first call; call the model once on a sample"
# What is refused, and why; with torch 2.15 some of these train.
REFUSED = {
    ("sparse embedding", "fsdp"): SPARSE,
    ("sparse only", "fsdp"): "the model gives sparse gradients",
    ("integer", "zero1"): "--strategy zero1 takes parameters of one dtype, and ",
    ("lazy", "ddp"): LAZY,
    ("lazy", "fsdp"): LAZY,
    ("Adafactor", "fsdp"): " sharded among ranks",  # with torch 2.9 it steps otherwise
    ("Rprop", "fsdp"): "(RuntimeError: ",
    ("SparseAdam", "ddp"): "SparseAdam cannot step these parameters (RuntimeError: SparseAdam does not support dense",
    ("LBFGS", "fsdp"): "LBFGS.step()",
}


@pytest.mark.needs("fsdp")
def test_each_trains_rightly_or_is_refused_in_one_line(turns: Turns) -> None:
    done = ok(turns(2, "tests.campaigns.sweep.train", cwd=ROOT, timeout=600))
    lines = [json.loads(line.removeprefix("case ")) for line in done.stdout.splitlines() if line.startswith("case ")]
    assert {line["case"] for line in lines} == {*CASES}
    assert [line for line in lines if line["what"] == "FAILS"] == []
    found = {(line["case"], line["where"]): line["detail"] for line in lines if line["what"] == "refused"}
    assert {one: text for one, text in REFUSED.items() if text not in found.get(one, text)} == {}
    assert ("number", "fsdp") not in found
    assert all("\n" not in text for text in found.values())
