"""``python -m runner [OPTIONS] TARGET [ARGS...]``: the command line, read once."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import runner
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import nonempty_path
from runner.base.settings import add_options, as_words, made_of, read_file, settings_in, values_in
from runner.launch.target import AS_CODE, AS_MODULE, NO_PYTHON, SCRIPT, Target, is_path, workload_summaries
from runner.options.job_settings import JobSettings
from runner.options.parsing import ALL, Parser, add_full_help, wants
from runner.parallel.settings import ParallelSettings

DESCRIPTION = """\
Run a PyTorch program on all ranks that mpirun, srun, torchrun, … started:

  mpirun -np 4 python -m runner train.py --lr 0.1  a script, as torchrun does
  mpirun -np 4 python -m runner workloads.mnist    a workload: below, or yours
  mpirun -np 4 python -m runner explain            a tool

"""

EPILOG = """\
TARGET --help shows its own options, --help-all what each of these does:
  {options}
Exit codes: 0 done, 1 a rank failed, 2 a wrong request or launch, 70 a hang, 75 saved, run it again; a script's own is passed on.
"""

FORMS = {
    AS_MODULE: "the target is a module, run as a program",
    AS_CODE: "the target is code",
    NO_PYTHON: "the target is not for Python: execute it",
}


@dataclass(frozen=True, kw_only=True)
class Given:
    """The part of a command line that is a workload's, as far as it is known before the workload is loaded.

    Attributes:
        words: all of it.
        rest: the words that name no option of the job or its parallelism.
        values: of those options, by the names of the settings.
        config: the file that --config names, and its entries.
    """

    words: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    config: tuple[Path, Mapping[str, Any]] | None = None

    def of_file(self, *kinds: type, is_all: bool = False) -> dict[str, Any]:
        """The file's values for these settings; with ``is_all`` it may have no others."""
        return values_in(*self.config, *kinds, is_all=is_all) if self.config else {}

    def parallel_values(self) -> dict[str, Any]:
        """The settings of parallelism that are given."""
        known = settings_in(ParallelSettings)
        return {
            name: value for name, value in (self.of_file(ParallelSettings) | dict(self.values)).items() if name in known
        }

    def without_parallel(self, values: Mapping[str, Any]) -> Given:
        """Return a copy with these settings of parallelism, and no others."""
        known = settings_in(ParallelSettings)
        config = self.config and (self.config[0], {key: x for key, x in self.config[1].items() if key not in known})
        others = {name: value for name, value in self.values.items() if name not in known}
        words = *self.rest, *as_words(JobSettings, others), *as_words(ParallelSettings, values)
        return replace(self, words=words, values=others | dict(values), config=config)

    @raised_on_all_ranks()
    def parallel(self) -> ParallelSettings:
        """The settings of parallelism, of which the layout is final: a workload has no defaults for it.

        Raises:
            UsageError: two of them do not go together.
        """
        return ParallelSettings(**self.parallel_values())


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line."""

    target: str
    form: str = ""  # how its name is meant: -m, -c, --no-python or ""
    may_be_workload: bool = False  # neither a tool nor a program
    arguments: tuple[str, ...] = ()
    job: JobSettings = field(default_factory=JobSettings)
    given: Given = field(default_factory=Given)  # of what may be a workload

    @property
    def tool(self) -> str:
        """The target's name, where it may be a tool; "" after ``-m`` and others, which never name one."""
        return "" if self.form else self.target

    @property
    def is_resumable(self) -> bool:
        """Whether steps that it reports are those of a training that can be resumed: it is no tool."""
        return self.may_be_workload or bool(self.form) or is_path(self.target)


def given_in(words: Sequence[str], before: Mapping[str, Any] = {}, *, target: str = "") -> Given:  # it is not changed
    """Parse the words after a workload's name.

    Args:
        before: values of options before the name, which those after it override.
        target: the name, for messages.

    Raises:
        UsageError: an option is wrong, or the file of --config cannot be read.
    """
    parser = Parser(prog=f"python -m runner {target}".strip(), add_help=False)
    add_options(parser, JobSettings, ParallelSettings)
    add_config(parser)
    found, rest = parser.parse_known_args(words)
    files = [*before.get("config", ()), *vars(found).get("config", ())]
    values = {name: value for name, value in (*before.items(), *vars(found).items()) if name != "config"}
    return Given(words=tuple(words), rest=tuple(rest), values=values, config=config_of(files))


def config_of(files: Sequence[Path]) -> tuple[Path, Mapping[str, Any]] | None:
    """Read the file that --config names. Returns the path and the entries; None without a file.

    Raises:
        UsageError: it cannot be read, or there are two.
    """
    if len(files) > 1:
        raise UsageError(f"--config {' and --config '.join(map(str, files))}", fix="write all settings into one file")
    return (files[0], read_file(files[0])) if files else None


def add_config(parser: argparse.ArgumentParser, *, is_shown: bool = True) -> None:
    """Add ``--config FILE``."""
    parser.add_argument(
        "--config",
        action="append",
        type=nonempty_path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="read settings from this TOML file (epochs = 3); the command line overrides them"
        if is_shown
        else argparse.SUPPRESS,
    )


def parse(argv: Sequence[str], tools: Mapping[str, str]) -> Request:
    """Read the command line.

    Args:
        tools: what each is for, by name. A tool parses everything after its name itself.

    Raises:
        UsageError: the command line is invalid.
        SystemExit: help or the version was asked for, and printed.
    """
    shows_all = wants(argv, ALL)
    usual = [one.flag for one in settings_in(JobSettings).values() if not (one.about.advanced or one.about.hidden)]
    parser = Parser(
        prog="python -m runner",
        usage="python -m runner [options] TARGET [arguments]",
        description=_description(tools) if wants(argv, "-h", "--help", ALL) else None,
        epilog=None
        if shows_all
        else EPILOG.format(options="\n  ".join(textwrap.wrap(" ".join(["--config", *usual]), 74))),
    )
    parser.is_for_host = True
    add_full_help(parser)
    parser.add_argument("--version", action="version", version=f"runner {runner.__version__}")
    for form, what in FORMS.items():
        text = what if shows_all else argparse.SUPPRESS
        parser.add_argument(form, dest="form", action="store_const", const=form, default="", help=text)
    add_config(parser, is_shown=shows_all)
    add_options(parser, JobSettings, show="all" if shows_all else "none")
    # One positional for target and arguments: if they were two, argparse would drop a "--" that follows the target.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    values = vars(parser.parse_args(argv))
    form, command = values.pop("form"), values.pop("command")
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        parser.error("no target given; for example workloads.mnist, train.py or explain")
    target, *arguments = command
    may_be_workload = not form and target not in tools and not is_path(target)
    given = given_in(arguments if may_be_workload else (), values, target=target)
    return Request(
        target=target,
        form=form,
        may_be_workload=may_be_workload,
        arguments=tuple(arguments),
        job=made_of(JobSettings, given.of_file(JobSettings, is_all=not may_be_workload), given.values),
        given=given,
    )


def _description(tools: Mapping[str, str]) -> str:
    return f"{DESCRIPTION}{_table('tools', tools)}\n{_table('workloads', workload_summaries())}"


def _table(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return f"{title}:\n" + "".join(f"  {name:{width}}  {what}\n" for name, what in rows.items()) if rows else ""


# What is said of options that have no effect, by the kind of target.
_IDLE = {
    "tool": {
        "backend": "it has options of its own: see its --help",
        "hang_timeout": "it is for workloads",
        "on_preempt": "it is for scripts",
        "time_limit": "it is for scripts and workloads",
        "time_to_save": "it is for scripts and workloads",
    },
    "workload": {"on_preempt": "a workload saves by itself"},
    SCRIPT: {"backend": "a script names its backend itself; --backend mpi4py serves one that says gloo or mpi"},
}


def refuse_idle_options(request: Request, target: Target) -> None:
    """Refuse an option that would have no effect on this kind of target.

    Raises:
        UsageError: there is one; the message says what to use instead.
    """
    job, kind = request.job, SCRIPT if target.is_program else target.kind
    idle = dict(_IDLE[kind])
    if request.tool == "explain" or (kind == SCRIPT and job.backend == "mpi4py"):
        del idle["backend"]
    if target.is_program and not target.runs_in_python:
        idle["backend"] = "--no-python starts a process that knows no such backend"
    if target.is_program and job.on_preempt is None:
        idle |= dict.fromkeys(("time_limit", "time_to_save"), "add --on-preempt, by which a script is told to save")
    for option, why in idle.items():
        if getattr(job, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} has no effect on {target.name}: {why}")
