"""What a user gives, a model's modes and dtypes and a loss, is used as it is under every strategy; or one line refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok, path_of, runner
from tests.layouts import FSDP, each_of
from tests.results import metrics, refused
from tests.turns import Turns, turns_fixture

turns = turns_fixture("module")


@each_of(
    (2, "--precision bf16"),
    (2, "--precision fp16 --micro-batches 2"),
    (2, "--precision bf16 --strategy zero1"),
    (2, "--precision bf16 --strategy fsdp"),
    (2, "--precision bf16 --strategy local-sgd"),
    (2, "--precision bf16 --tp 2"),
    (2, "--precision bf16 --pp 2"),
)
def test_an_evaluation_has_the_loss_of_a_step(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    """So has a metric that computes the same."""
    ok(turns(ranks, "as_given", f"--checkpoint-dir={tmp_path}", *layout.split()))
    (found,) = metrics(tmp_path)
    assert found["val_loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["val_ce"] == pytest.approx(found["loss"], rel=1e-6)


@each_of(
    (2, ""),
    (2, "--strategy zero1"),
    (2, "--strategy fsdp"),
    (2, "--strategy local-sgd"),
    (2, "--pp 2 --micro-batches 2"),
)
def test_a_part_in_evaluation_mode_stays_so(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    """After evaluations in an epoch and at its end, and a hook that forgets the mode; what a hook freezes is frozen, too."""
    more = ["as_given", f"--checkpoint-dir={tmp_path}", "--global-batch-size=32", "--epochs=2", *layout.split()]
    done = ok(turns(ranks, *more, "--mode=part"))
    assert done.stdout.splitlines()[-1] == "in training mode: root 3, root 3, root, root; statistics: 0.000"
    last = ok(turns(ranks, *more, "--mode=root")).stdout.splitlines()[-1]
    assert last.startswith("in training mode: root 1 3, root 1 3, root 1, root 1; ")
    assert not last.endswith("statistics: 0.000")


@each_of((2, ""), (2, "--strategy fsdp"), (2, "--strategy local-sgd"), (2, "--pp 2 --micro-batches 2"), (2, "--tp 2"))
def test_a_model_keeps_its_dtypes(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    """The float32 inputs are cast to that of its first parameter. The option casts both."""
    for number, (types, given, of_outputs) in enumerate(
        [
            ("float64", "float64", "float64"),
            ("bfloat16", "bfloat16", "bfloat16"),
            ("mixed", "float32 float64", "float32"),
            ("bfloat16 --dtype float64", "bfloat16", "float64"),
        ]
    ):
        folder = f"--checkpoint-dir={tmp_path}/{number}"
        done = ok(turns(ranks, "as_given", folder, *layout.split(), *f"--types {types}".split()))
        expected = [[f"torch.{one}" for one in names.split()] for names in (given, of_outputs)]
        assert f"given {expected[0]}, outputs {expected[1]}" in done.stdout


@pytest.mark.parametrize("options", ["", FSDP, "local-sgd --sync-every=100"])
def test_a_script_that_evaluates(options: str, tmp_path: Path) -> None:
    """All ranks predict and keep the same, and each module keeps its mode, also if the evaluation fails."""
    strategy = f"--strategy={options}".split() if options else []
    done = ok(runner(2, path_of("own_evaluation"), f"--checkpoint-dir={tmp_path}", *strategy))
    assert "maker: alike True, statistics 0.0\njudge: alike True, statistics " in done.stdout
    assert done.stdout.splitlines()[-1] == "modes: ['[True, False, True, True]']"


def test_a_step_that_is_ended_before_the_optimizer_steps_is_refused(tmp_path: Path) -> None:
    done = runner(2, path_of("own_evaluation"), f"--checkpoint-dir={tmp_path}", "--early")
    refused(done, "save_if_due() between backward() and step() of maker; call it after maker.step()")


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
