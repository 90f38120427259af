"""The runner's command line: what is the runner's, and what is the target's own."""

from __future__ import annotations

import pytest

from runner.base.errors import UsageError
from runner.options.command import parse

TOOLS = {"explain": "what there is"}
UNKNOWN, SEE = "unrecognized arguments:", r"\(see python -m runner --help\)"


@pytest.mark.parametrize(
    ("argv", "target", "arguments"),
    [
        ("train.py --lr 1", "train.py", "--lr 1"),
        ("train.py --device cuda --help", "train.py", "--device cuda --help"),
        ("train.py -- x", "train.py", "-- x"),
        ("train.py x -- -- y", "train.py", "x -- -- y"),
        ("-- train.py", "train.py", ""),
        ("--device cpu -- train.py -- x", "train.py", "-- x"),
        ("-m train --device cuda", "train", "--device cuda"),
        ("-m train -m", "train", "-m"),
        ("explain --json", "explain", "--json"),
        ("workloads.mnist --epochs 1 -- x", "workloads.mnist", "--epochs 1 -- x"),
    ],
)
def test_a_target_has_its_arguments_untouched(argv: str, target: str, arguments: str) -> None:
    request = parse(argv.split(), TOOLS)
    assert (request.target, " ".join(request.arguments)) == (target, arguments)
    assert request.job.device in ("auto", "cpu")


@pytest.mark.parametrize("argv", ["--rendezvous env env", "env --rendezvous env", "env --lr 1 --rendezvous env x"])
def test_a_workload_may_be_called_like_an_options_value(argv: str) -> None:
    request = parse(argv.split(), TOOLS)
    assert (request.target, request.job.rendezvous, request.may_be_workload) == ("env", "env", True)


def test_a_workload_has_the_runners_options_on_either_side_of_its_name() -> None:
    argv = "--timeout 5 --device cpu work --device cuda --backend mpi4py"
    request = parse(argv.split(), TOOLS)
    assert (request.job.timeout, request.job.device, request.job.backend) == (5.0, "cuda", "mpi4py")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "no target given"),
        ("--device cpu", "no target given"),
        ("--", "no target given"),
        ("work --device gpu", r"argument --device: 'gpu' is none of auto.* work --help\)$"),
        ("--timeout inf train.py", "argument --timeout: 'inf'"),
        ("--rendevous file train.py", rf"^{UNKNOWN} --rendevous; did you mean --rendezvous\? {SEE}$"),
        ("--hang-timout=3 train.py", rf"^{UNKNOWN} --hang-timout=3; did you mean --hang-timeout\? {SEE}$"),
        ("--nothing-like-it train.py", rf"^{UNKNOWN} --nothing-like-it {SEE}$"),
    ],
)
def test_what_cannot_be_read_is_told(argv: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(argv.split(), TOOLS)
