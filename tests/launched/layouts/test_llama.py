"""workloads.llama: one curve whatever the layout, checkpoints that continue under another, generation, and weights in and out."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launching import ok
from tests.layouts import each_of, needing
from tests.results import losses, metrics, refused
from tests.turns import Turns

pytestmark = pytest.mark.needs("workloads.llama")

TEXT = Path(__file__)  # what the models read: a few thousand bytes
SMALL = (f"--text={TEXT}", "--length=32", "--global-batch-size=8", "--dtype=float64", "--log-every=1", "--warmup=3")


@pytest.fixture(scope="module")
def whole(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints and metrics of eight steps on one rank."""
    folder = tmp_path_factory.mktemp("whole")
    ok(turns(1, "workloads.llama", *SMALL, "--max-steps=8", f"--checkpoint-dir={folder}"))
    return folder


@each_of(
    (2, "--tp 2 --sequence-parallel --loss-parallel"),
    (4, "--strategy fsdp --tp 2 --activation-checkpointing selective"),
    (4, "--tp 2 --pp 2 --sequence-parallel --micro-batches 2"),
)
def test_the_curve_is_that_of_one_rank(ranks: int, layout: str, whole: Path, turns: Turns, tmp_path: Path) -> None:
    options = [*SMALL, *layout.split(), f"--checkpoint-dir={tmp_path}", "--max-steps=8", "--save-every=end"]
    done = ok(turns(ranks, "workloads.llama", *options))
    assert losses(tmp_path) == pytest.approx(losses(whole), rel=1e-9)
    assert metrics(tmp_path)[-1]["val_loss"] == pytest.approx(metrics(whole)[-1]["val_loss"], rel=1e-9)
    assert "bits/byte" in done.stdout
    assert "tokens/s" in done.stdout
    assert "Warning" not in done.stderr
    assert "redistributing" not in done.stderr
    assert metrics(tmp_path)[-1]["tflops_per_rank"] > 0


OTHERS = (
    (2, "--strategy ddp"),
    (4, "--strategy fsdp"),
    (4, "--strategy fsdp --tp 2"),
    (2, "--pp 2 --micro-batches 2"),
    (8, "--strategy fsdp --tp 2"),
    (4, "--strategy zero1"),
    (1, "--strategy ddp"),
)


@needing(*OTHERS)
def test_a_training_goes_on_under_other_strategies_and_numbers_of_ranks(
    whole: Path, turns: Turns, tmp_path: Path
) -> None:
    for steps, (ranks, layout) in zip((1, 2, 3, 4, 5, 6, 8), OTHERS, strict=True):
        options = [*SMALL, *layout.split(), f"--checkpoint-dir={tmp_path}", f"--max-steps={steps}"]
        resume = ["--resume"] if steps > 1 else []
        # the schedule of the learning rate ends with the training, whose end is the same for all
        ok(turns(ranks, "workloads.llama", *options, "--decay-steps=8", *resume))
    assert losses(tmp_path) == pytest.approx(losses(whole), rel=1e-9)


LAYOUTS = (
    (1, ""),
    (2, "--tp 2"),
    (2, "--pp 2"),
    (2, "--strategy fsdp"),
    (4, "--tp 2 --pp 2"),
    (4, "--strategy fsdp --tp 2"),
)


@needing(*LAYOUTS)
def test_a_training_with_tied_weights_goes_on_under_other_strategies(turns: Turns, tmp_path: Path) -> None:
    """A pipeline's first and last stage have a copy each; a checkpoint has one."""
    options = [*SMALL, "--decay-steps=6", "--clip-norm=0.5"]
    ok(turns(1, "tied_llama", *options, f"--checkpoint-dir={tmp_path}/whole", "--max-steps=6"))
    parts = (
        (2, "--pp 2 --micro-batches 2"),
        (4, "--strategy fsdp --pp 2 --micro-batches 2"),
        (2, "--tp 2"),
        (4, "--tp 2 --pp 2 --micro-batches 2"),
        (1, ""),
    )
    for steps, (ranks, layout) in zip((1, 2, 4, 5, 6), parts, strict=True):
        more = [f"--checkpoint-dir={tmp_path}/parts", f"--max-steps={steps}", *(["--resume"] if steps > 1 else [])]
        ok(turns(ranks, "tied_llama", *options, *layout.split(), *more))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-9)
    generate = [*SMALL, f"--checkpoint-dir={tmp_path}/parts", "--generate=a text", "--tokens=8"]
    texts = {ok(turns(ranks, "tied_llama", *generate, *layout.split())).stdout for ranks, layout in LAYOUTS}
    (text,) = texts
    assert text.startswith("a text")
    assert len(text.removesuffix("\n")) > len("a text")


def test_a_later_end_of_the_learning_rate_is_told(whole: Path, turns: Turns, tmp_path: Path) -> None:
    options = [*SMALL, f"--resume={whole}", f"--checkpoint-dir={tmp_path}"]
    done = ok(turns(1, "workloads.llama", *options, "--max-steps=9", "--warmup=2"))
    assert "warmup 3 → 2, end of the learning rate step 8 → step 9" in done.stdout


@needing(*LAYOUTS)
def test_the_tokens_are_those_of_one_rank(whole: Path, turns: Turns) -> None:
    options = [*SMALL, f"--checkpoint-dir={whole}", "--generate=a text", "--tokens=12"]
    told = {layout: ok(turns(ranks, "workloads.llama", *options, *layout.split())).stdout for ranks, layout in LAYOUTS}
    assert len(set(told.values())) == 1, told
    (text,) = set(told.values())
    assert text.startswith("a text")
    assert len(text) == len("a text") + 12 + len("\n")
    drawn = [
        ok(turns(ranks, "workloads.llama", *options, "--temperature=2", f"--seed={seed}", *layout)).stdout
        for ranks, seed, *layout in ((1, 1), (1, 1), (1, 2), (2, 1, "--tp=2"), (2, 1, "--pp=2"))
    ]
    assert drawn[0] == drawn[1] == drawn[3] == drawn[4] != drawn[2]


@each_of((2, "--strategy=fsdp"), (2, "--pp=2"))
def test_weights_go_out_and_come_in(ranks: int, layout: str, whole: Path, turns: Turns, tmp_path: Path) -> None:
    out, back, folder = tmp_path / "out", tmp_path / "back", tmp_path / "trained"
    ok(turns(1, "workloads.llama", *SMALL, f"--checkpoint-dir={whole}", f"--export={out}"))
    options = [*SMALL, f"--pretrained={out}", "--lr=1e-300", "--max-steps=1", f"--checkpoint-dir={folder}"]
    ok(turns(ranks, "workloads.llama", *options, layout))
    ok(turns(1, "workloads.llama", *SMALL, f"--checkpoint-dir={folder}", f"--export={back}"))
    one, other = load_file(out / "model.safetensors"), load_file(back / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--length 1024", "--length 1024 is more than the model's 512 positions"),
        pytest.param(
            "--sequence-parallel --tp 2 --length 31",
            "--tp 2 does not divide --length 31",
            marks=pytest.mark.needs("tp"),
        ),
        pytest.param(
            "--pp 2 --pp-schedule interleaved1f1b --stages-per-rank 8 --micro-batches 4",
            "can be cut into 6 pieces at most",
            marks=pytest.mark.needs("pp"),
        ),
        ("--export {folder} --checkpoint-dir {folder}", "there is no checkpoint in"),
        ("--generate x --checkpoint-dir {folder}", "/none"),
        ("--generate= --checkpoint-dir {folder}", "--generate has no text to continue"),
        ("--generate x --tokens 512 --checkpoint-dir {folder}", "512"),
        ("--text /nowhere", "/nowhere cannot be read"),
        ("--pretrained /nowhere", "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: str, told: str, turns: Turns, tmp_path: Path) -> None:
    arguments = options.format(folder=tmp_path / "none").split()
    refused(turns(2, "workloads.llama", *SMALL, *arguments), told)
