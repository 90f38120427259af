"""Calling a workload's ``main`` with what the command line gives it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.settings import add_options, made_of, settings_in
from runner.options.command import Given, add_config, given_in
from runner.options.job_settings import JobSettings
from runner.options.parsing import ALL, Parser, add_full_help, wants
from runner.parallel.settings import LAYOUT, ParallelSettings
from runner.training.places import check_output
from runner.training.run import Run
from runner.training.settings import Settings, StepSettings

Main = Callable[..., Any]
Change = Callable[[StepSettings], StepSettings]
_RESERVED = {"config", "help", "help_all"}


def bound(main: Main, run: Run, given: Given, change: Change = lambda settings: settings) -> Callable[[], Any]:
    """``main`` with its arguments: the run, and its settings or, if it takes no ``StepSettings``, all words after its name.

    Args:
        change: of the settings that were read.

    Raises:
        UsageError: a setting is wrong, or output cannot be written to the place given.
        SystemExit: help was asked for, and printed.
    """
    with raised_on_all_ranks():
        kind = settings_class(main)
        if kind is None:
            given.of_file(JobSettings, ParallelSettings, is_all=True)
    if kind is None:
        return functools.partial(main, run, list(given.words))
    settings = _settings(kind, main, run, given, change)

    def call_with_settings() -> Any:
        if isinstance(settings, Settings):
            check_output(run, settings)
        return main(replace(run, settings=settings), settings)

    return call_with_settings


def call(main: Main, run: Run, words: Sequence[str]) -> Any:
    """Call ``main`` with what these words give it, as they would stand after its name."""
    return bound(main, run, given_in(words))()


def settings_class(main: Main) -> type[StepSettings] | None:
    """The class of the settings that ``main`` takes, by the annotation of its second parameter; None if it takes words.

    Raises:
        UsageError: that annotation cannot be read, or there is none where settings seem to be meant.
    """
    try:
        parameters = list(inspect.signature(main).parameters.values())
    except (TypeError, ValueError):
        return None
    if len(parameters) < 2:
        return None
    second = parameters[1]
    kind = second.annotation
    if isinstance(kind, str):
        try:
            kind = eval(kind, inspect.unwrap(main).__globals__)  # noqa: S307  # the workload's own text
        except NameError as error:
            raise UsageError(
                f"{main.__module__}: the annotation of {second.name} cannot be read: {error}",
                fix="import that name outside of TYPE_CHECKING",
            ) from None
    if isinstance(kind, type) and issubclass(kind, StepSettings):
        return kind
    if second.name in ("options", "settings") or "Settings" in str(kind):
        raise UsageError(
            f"{main.__module__}: main(run, {second.name}) does not say what it takes",
            fix=f"write {second.name}: Settings, or your own class of them",
        )
    return None


@raised_on_all_ranks()
def _settings(kind: type[StepSettings], main: Main, run: Run, given: Given, change: Change) -> StepSettings:
    """The settings of a class: from the command line, else the file, else the class's defaults; with its folder and batch."""
    known, of_job = settings_in(kind), settings_in(JobSettings)
    if twice := known.keys() & (of_job.keys() | _RESERVED):
        raise UsageError(f"{run.workload}: the runner has the settings {', '.join(twice)} itself", fix="rename them")
    for name in LAYOUT:
        if known[name].default != settings_in(StepSettings)[name].default:
            raise UsageError(
                f"{run.workload}: {name} = {known[name].default}: the ranks' layout is made before a workload is loaded",
                fix=f"leave the default, and say {known[name].flag} on the command line or in --config FILE",
            )
    module = sys.modules.get(main.__module__)
    parser = Parser(prog=f"python -m runner {run.workload}", description=module and module.__doc__)
    add_full_help(parser)
    add_options(parser, kind, JobSettings, show="all" if wants(given.rest, ALL) else "some")
    add_config(parser)
    typed = dict(given.values) | vars(parser.parse_args(given.rest))
    # A class may allow fewer choices than ParallelSettings, by which these values were read.
    for name in known.keys() & given.values.keys():
        one, value = known[name], given.values[name]
        if one.about.choices is not None and value is not None and one.text_of(value) not in one.choices:
            parser.error(f"argument {one.flag}: {one.text_of(value)!r} is none of {', '.join(one.choices)}")
    found = made_of(kind, *_one_batch(given.of_file(JobSettings, kind, is_all=True)), *_one_batch(typed))
    found = change(found)
    if isinstance(found, Settings):
        found = found.in_folder(run.workload)
    return found.for_ranks(run.data_size)


def _one_batch(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The values; where they have a rank's batch, one of all ranks that was given before no longer counts."""
    if "batch_size" in values:
        yield {"global_batch_size": None}
    yield values
