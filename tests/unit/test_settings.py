"""Settings are declared once: the parser, the help, files, and the reference page follow from the fields."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.base.settings import as_toml, as_words, made_of, option, settings_in
from runner.options.command import given_in, parse
from runner.tools.registry import TOOLS, summaries
from runner.training.settings import Every, Settings, Steps, StepSettings, every, shared_in
from runner.training.workload import bound
from tests.reference import DOCUMENT, page


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of a workload with defaults and options of its own."""

    epochs: int = 15
    data: str = option("one", choices=("one", "two"))
    momentum: float = option(0.9, "of SGD")
    width: int = 64
    fast: bool = False
    note: str | None = option(None, "anything", changes=True)
    tag: tuple[str, ...] = option((), "any number of them")


def of_fields(**fields: tuple[Any, Any]) -> type[Settings]:
    """A workload's class of settings with more or other fields, each with its type and its default."""
    described = [(name, *of_field) for name, of_field in fields.items()]
    return make_dataclass("Own", described, bases=(Settings,), frozen=True, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Here:
    """What a workload's settings need of a run."""

    workload: str = "work.mine"
    data_size: int = 1
    train_by: Any = len
    settings: Any = None


def read(*words: str, kind: type[StepSettings] = Options, ranks: int = 1) -> Any:
    """What a workload's main gets."""

    def main(run: Any, options: Any) -> Any:
        return options

    main.__annotations__ = {"options": kind}
    if issubclass(kind, Settings):  # nothing is written
        words = (*words, "--checkpoint-dir", "runs")
    here: Any = Here(data_size=ranks)
    return bound(main, here, given_in(words))()


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], str]:
    """A function that writes a file, and returns the option that names it."""
    file = tmp_path / "mine.toml"

    def write(text: str) -> str:
        file.write_bytes(text.encode())
        return f"--config={file}"

    return write


# Values of some fields, as a program would give them.
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 10**9),
        "lr": st.floats(1e-12, 1e6),
        "momentum": st.floats(0, 1),
        "width": st.integers(),
        "fast": st.booleans(),
        "compile": st.booleans(),
        "data": st.sampled_from(["one", "two"]),
        "note": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        "tag": st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)).map(tuple),
        "logger": st.lists(st.sampled_from(["tensorboard", "mlflow:http://a:5000", "wandb:b"]), min_size=1).map(tuple),
        "metrics": st.builds(Path, st.text("abc/ é.", min_size=1)),
        "clip_norm": st.none() | st.floats(0.01, 100),
        "profile": st.builds(Steps, st.integers(1, 5), st.integers(5, 9)),
        "save_every": st.sampled_from([Every(0), Every(2), Every(500, "steps"), Every(90.0, "s")]),
    },
)


@given(VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_run_leaves_makes_the_same_run(config: Callable[[str], str], values: dict[str, Any]) -> None:
    left = read(config(as_toml(made_of(Options, values)))).given
    assert left.items() >= {name: value for name, value in values.items() if value is not None}.items()


@given(VALUES)
def test_words_of_a_command_line_give_the_values_that_they_were_made_of(values: dict[str, Any]) -> None:
    values = {name: x for name, x in values.items() if x is not None and name in settings_in(Settings)}
    assert shared_in(given_in(as_words(Settings, values)), *settings_in(Settings)) == values


def test_the_command_line_is_before_the_file_and_the_file_before_the_defaults(config: Callable[[str], str]) -> None:
    file = config('\ufeffepochs = 3\r\nlr = 0.5\n[parallel]\nclip-norm = 2\n[runner]\ntime_limit = "1:00:00"\n')
    found = read("--lr", "0.25", file)
    assert (found.epochs, found.lr, found.clip_norm, found.momentum) == (3, 0.25, 2.0, 0.9)
    request = parse([file, "work", "--timeout", "5"], summaries())
    assert (request.job.time_limit, request.job.timeout) == (3600.0, 5.0)


def test_a_list_is_given_by_one_option_for_each_of_its_values(config: Callable[[str], str]) -> None:
    assert read("--tag", "a", "--tag=b").tag == ("a", "b")
    assert read().tag == read("--tag", "a", "--no-tag").tag == ()
    file = config('tag = ["a", "b"]')
    assert (read(file).tag, read(file, "--tag", "c").tag) == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epoch = 3", "there is no setting 'epoch'; did you mean epochs?"),
        ("epochs = 0", "epochs: '0'"),
        ("epochs = true", "epochs = true; it takes a value"),
        ("epochs = [1]", "epochs = [1]; say one number or text"),
        ('fast = "yes"', 'fast = "yes"; say true or false'),
        ('data = "three"', "data: 'three' is none of one, two"),
        ('strategy = "dpp"', "strategy: 'dpp' is none of ddp,"),
        ('tag = "a"', 'tag = "a"; say a list, such as ["one", "two"]'),
        ("tag = [[]]", "tag = []; say one number or text"),
        ('logger = ["mlflow", "mflow"]', "logger: 'mflow' is none of tensorboard, mlflow, wandb"),
        ("epochs 3", "write lines such as epochs = 3"),
        ("[a]\nlr = 1\n[b]\nlr = 2", "lr is there twice"),
        ("format = 2\nepochs = 3", " is of format 2, and this runner reads 1; update the runner"),
        ("log_dir = ''", "log_dir: the path is empty"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(text: str, told: str, config: Callable[[str], str]) -> None:
    file = config(text)
    with pytest.raises(UsageError) as caught:
        read(file)
    assert str(caught.value).startswith(file.replace("=", " "))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"--config missing.toml: No such file"):
        read("--config", "missing.toml")


def test_a_script_takes_the_settings_of_its_job_only(config: Callable[[str], str]) -> None:
    assert parse([config('device = "cpu"'), "train.py"], summaries()).job.device == "cpu"
    with pytest.raises(UsageError, match="'epochs'"):
        parse([config("epochs = 3"), "train.py"], summaries())


def test_settings_that_depend_on_the_ranks(config: Callable[[str], str]) -> None:
    assert read(config("global_batch_size = 64"), "--batch-size", "8", ranks=4).batch_size == 8  # what is said last
    found = read("--global-batch-size", "64", "--scale-lr", "--lr", "0.1", ranks=4)
    assert (found.batch_size, found.lr) == (16, pytest.approx(0.4))
    assert found.for_ranks(4) == found
    assert found.given["lr"] == 0.1
    with pytest.raises(
        UsageError, match=r"--global-batch-size 64 does not divide among 3 .* \(64 = 3 × 21 \+ 1\); take 63 or 66"
    ):
        read("--global-batch-size", "64", ranks=3)


def test_a_workload_that_saves_nothing_has_no_options_for_it() -> None:
    assert read("--batch-size", "8", kind=StepSettings).batch_size == 8
    with pytest.raises(UsageError, match="unrecognized arguments: --epochs 3"):
        read("--epochs", "3", kind=StepSettings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", Every(2)),
        ("1epoch", Every(1)),
        ("500steps", Every(500, "steps")),
        ("90s", Every(90, "s")),
        ("10min", Every(600, "s")),
        ("1.5h", Every(5400, "s")),
        ("end", Every(0)),
    ],
)
def test_how_often_a_checkpoint_is_written(text: str, expected: Every) -> None:
    assert every(text) == expected
    assert every(str(expected)) == expected


@pytest.mark.parametrize("text", ["0", "-1", "1.5steps", "0s", "x", "", "3days"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is none of 2epochs, 500steps"):
        read("--save-every", text)


@pytest.mark.needs("workloads.llama")
def test_the_reference_is_what_the_settings_say() -> None:
    assert DOCUMENT.read_text() == page(), "run make reference"


def test_none_is_false_in_a_file_and_no_on_the_command_line(config: Callable[[str], str]) -> None:
    clipped = of_fields(clip_norm=(float | None, 1.0))
    file = config("clip_norm = false\n")
    assert read(kind=clipped).clip_norm == 1.0
    assert read(file, kind=clipped).clip_norm is read("--no-clip-norm", kind=clipped).clip_norm is None


class Undecorated(Settings):
    epochs: int = 15


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (of_fields(layers=(list[int], field(default_factory=list))), "Own.layers: no text is read as list"),
        (Undecorated, "the class Undecorated is no dataclass"),
        (of_fields(name=(str, field())), "Own.name has no default"),
        (of_fields(tp=(int, 2)), "tp = 2: the ranks' layout is made before a workload is loaded"),
        (of_fields(timeout=(float, 3.0)), "the runner has the settings timeout itself"),
    ],
)
def test_what_cannot_be_an_option_is_told(kind: type[Settings], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read(kind=kind)


def test_a_class_may_allow_fewer_values() -> None:
    few = of_fields(precision=(str, option("fp32", choices=("fp32",))), sync_every=(int, option(8, choices=(8, 16))))
    for words, told in {"--precision bf16": "none of fp32", "--sync-every 4": "none of 8, 16"}.items():
        with pytest.raises(UsageError, match=told):
            read(*words.split(), kind=few)
    assert read("--sync-every", "16", "--strategy", "local-sgd", kind=few).sync_every == 16


def test_values_to_choose_from_may_be_numbers(config: Callable[[str], str]) -> None:
    named = option(1, choices=("a", "b"), parse={"a": 1, "b": 2}.__getitem__, text=["", "a", "b"].__getitem__)
    depth, rate = option(18, choices=(18, 34)), option(1.0, choices=(0.5, 1.0))
    chosen = of_fields(depth=(int, depth), rate=(float, rate), named=(int, named))
    assert read(kind=chosen).depth == 18
    found = read("--depth", "34", "--rate", "1.0", "--named", "b", kind=chosen)
    assert (found.depth, found.rate, found.named) == (34, 1.0, 2)
    assert read(config(as_toml(found)), kind=chosen) == found
    assert settings_in(chosen)["depth"].metavar == "{18,34}"
    for words, told in {"--depth 50": "is none of 18, 34", "--depth many": "is no whole number"}.items():
        with pytest.raises(UsageError, match=told):
            read(*words.split(), kind=chosen)


def test_what_a_workloads_own_function_does_not_read_is_told_in_one_line(config: Callable[[str], str]) -> None:
    own = of_fields(date=(str, option("2024-01-01", parse=lambda text: str(datetime.date.fromisoformat(text)))))
    told = r"'never' cannot be read \(ValueError: Invalid isoformat"
    with pytest.raises(UsageError, match=rf"argument --date: {told}"):
        read("--date", "never", kind=own)
    with pytest.raises(UsageError, match=rf"mine.toml: date: {told}"):
        read(config("date = 'never'"), kind=own)


def test_loggers_may_be_a_default() -> None:
    bare = of_fields(logger=(tuple, ("mlflow", "tensorboard:x")))  # the type as users write it
    assert read(kind=bare).logger == ("mlflow", "tensorboard:x")
    assert read("--logger", "mlflow", kind=bare).logger == ("mlflow",)
    assert '# logger = ["mlflow", "tensorboard:x"]' in as_toml(read(kind=bare))


def test_a_workload_that_reads_its_words_itself_has_all_of_them() -> None:
    words = ["--precision", "bf16", "--mine", "16"]

    def main(run: Any, argv: list[str]) -> list[str]:
        return argv

    here: Any = Here()
    assert bound(main, here, given_in(words))() == words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--time-limit 0", "argument --time-limit: '0' is no time to run for"),
        ("--time-limit 0:00:00", "argument --time-limit: '0:00:00' is no time to run for"),
        *[(f"--{name}=", f"argument --{name}: the path is empty") for name in ("log-dir", "config", "checkpoint-dir")],
        ("--resume=", "argument --resume: the path is empty"),
    ],
)
def test_what_says_nothing_is_refused(words: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        read(*words.split())


@pytest.mark.parametrize(
    "words", ["--config a work --config b", "--config a --config b work", "work --config a --config b"]
)
def test_two_files_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match="--config a and --config b; write all settings into one file"):
        parse(words.split(), TOOLS)


def test_resume_by_itself_is_the_newest(config: Callable[[str], str]) -> None:
    found = read("--resume")
    assert found.resume == ""
    left = as_toml(found)
    assert "resume = true" in left
    assert read(config(left)) == found


def test_a_main_that_does_not_say_what_it_takes_is_told() -> None:
    def main(run: Any, options: Any) -> None: ...

    del main.__annotations__["options"]
    with pytest.raises(UsageError, match=r"main\(run, options\) does not say what it takes; write options: Settings"):
        bound(main, SimpleNamespace(workload="work.mine"), given_in([]))
