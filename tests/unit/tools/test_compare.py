"""``compare``'s engines: which are taken, and what the one trains that exchanges nothing."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runner.base.errors import UsageError
from runner.parallel.mesh import Degrees, Layout
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Plan
from runner.tools.compare.choices import ALONE, BARE, Choice, chosen, supported
from runner.tools.compare.engines import build
from runner.tools.tables.output import check_output
from runner.training.settings import StepSettings
from tests.unit.backends.test_choice import job
from tests.unit.parallel.test_trainer import task

LAYOUT = Layout(Degrees.of(1), (0,))
ENGINES = [Choice(name=kind, kind=kind, layout=LAYOUT) for kind in ("ddp", BARE)]


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        (ParallelSettings(clip_norm=1.0, compile=True, precision="bf16"), ""),
        (ParallelSettings(micro_batches=2, comm_hook="bf16"), "--micro-batches, --comm-hook"),
        (ParallelSettings(precision="fp16"), "--precision"),
    ],
)
def test_ddp_by_hand_is_an_engine_where_it_knows_the_options(options: ParallelSettings, unknown: str) -> None:
    assert supported(ENGINES, options, asked_for=False) == (ENGINES[:1] if unknown else ENGINES)
    told = f"--engines bare: DDP by hand knows no {unknown};"
    with pytest.raises(UsageError, match=told) if unknown else nullcontext():
        assert supported(ENGINES, options, asked_for=True) == ENGINES


def test_a_library_is_an_engine_by_default_where_it_bears_the_options() -> None:
    here = job(threads=1)
    kinds = {choice.kind for choice in chosen(here, None, [])}
    assert {choice.kind for choice in chosen(here, None, ["--precision", "fp16"])} == kinds - {"horovod"}
    with pytest.raises(UsageError, match="add --pp 2"):
        chosen(here, None, ["--stages-per-rank", "2"])


class Unit(nn.Linear):
    calls = 0

    def forward(self, values: Tensor) -> Tensor:
        Unit.calls += 1
        return super().forward(values)


@pytest.mark.parametrize(("how", "calls"), [("none", 1), ("full", 2)])
def test_alone_computes_activations_again_where_the_others_do(how: str, calls: int) -> None:
    options = StepSettings(batch_size=1, activation_checkpointing=how)
    run: Any = SimpleNamespace(device=torch.device("cpu"))
    made = task(nn.Sequential(Unit(2, 2)), Plan(shard=("0",)))
    engine = build(Choice(name=ALONE, kind=ALONE, layout=LAYOUT), run, made, options)
    Unit.calls = 0
    engine.step((torch.ones(1, 2), torch.ones(1, 2)))
    assert Unit.calls == calls


@pytest.mark.parametrize("given", [{"json": "", "plot": None}, {"json": None, "plot": ""}])
def test_a_file_without_a_name_is_refused(given: dict[str, str | None]) -> None:
    with pytest.raises(UsageError, match="the path is empty; name a file"):
        check_output(**given)
