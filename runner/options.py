"""The runner's command line. Its options come before the target; for a workload they may also follow its name."""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGUSR1, Signals
from typing import Any, NoReturn

import runner
from runner.comm.table import process_groups
from runner.devices import DEVICES
from runner.errors import UsageError, raised_on_all_ranks
from runner.launch.detect import is_reporting
from runner.launch.table import SINGLE, launchers
from runner.quantities import duration, not_negative, seconds
from runner.rendezvous.rendezvous import WAYS
from runner.target import AS_CODE, AS_MODULE, NO_PYTHON, SCRIPT, Target, is_path

HANG_TIMEOUT = 600.0  # seconds

DESCRIPTION = """\
Run a PyTorch program on all ranks that your launcher started (mpirun, srun, torchrun, horovodrun, …), for example

  mpirun -np 4 python -m runner train.py --lr 0.1

A target is one of
  train.py            a script: any that is written for torchrun
  -m package.train    a module, run as python -m would
  workloads.mnist     a workload: a module with main(run, argv)
  explain             a tool: this one shows launcher, ranks, hosts, devices
"""

EPILOG = """\
Rank, size and local rank come from the launcher's variables, the rendezvous address from MPI (or a file, or the
scheduler's host list): you give no port, host name or interface. Exit codes: 0 done, 1 a rank failed,
2 the request or the launch is wrong (one line says what to change), 70 a rank hangs, 75 saved and ended early: run
it again; a script's own exit code is passed on.
"""


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs; indented lines are examples and stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.strip().replace("``", "").splitlines()
        filled: list[str] = []
        for is_prose, part in itertools.groupby(lines, lambda line: bool(line) and not line.startswith(" ")):
            block = list(part)
            filled += textwrap.wrap(" ".join(block), width - len(indent)) if is_prose else block
        return textwrap.indent("\n".join(filled), indent)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help is printed by one rank.

    Options cannot be abbreviated: a workload's own option must not match the beginning of one of the runner's.
    """

    def __init__(self, **options: Any) -> None:
        ours: dict[str, Any] = {"formatter_class": _Formatter, "allow_abbrev": False}
        super().__init__(**(ours | options))

    def error(self, message: str) -> NoReturn:
        with raised_on_all_ranks():  # all ranks have the same arguments
            raise UsageError(f"{message}{self._meant(message)} (see {self.prog} --help)")

    def _meant(self, message: str) -> str:
        """A hint at the options that unknown ones were meant to be, "" if none is similar."""
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        given = [word.partition("=")[0] for word in words.split() if is_unknown and word.startswith("--")]
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        near = [difflib.get_close_matches(option, known, n=1, cutoff=0.75) for option in given]
        found = dict.fromkeys(match for matches in near for match in matches)
        return f"; did you mean {' and '.join(found)}?" if found else ""

    def print_help(self, file: object = None) -> None:
        if is_reporting(os.environ):
            super().print_help()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The parsed command line."""

    target: str
    form: str  # how its name is meant: -m, -c, --no-python or ""
    may_be_workload: bool  # neither a tool nor a program
    arguments: tuple[str, ...]
    launcher: str | None
    rendezvous: str
    device: str
    backend: str | None  # None if not given, here and below
    timeout: float
    collective_timeout: float | None
    hang_timeout: float | None
    log_folder: Path | None
    prefixes_output: bool
    restarts: int
    on_preempt: Signals | Path | None = None
    time_limit: float | None = None
    time_to_save: float | None = None
    began: float | None = None
    standby: bool | None = None

    @property
    def tool(self) -> str:
        """The target's name, where it may be a tool; "" after ``-m`` and others, which never name one."""
        return "" if self.form else self.target


def _notice(text: str) -> Signals | Path:
    """How a script is told to save."""
    if text == "usr1":
        return SIGUSR1
    kind, _, name = text.partition("=")
    if kind != "touch" or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is neither usr1 nor touch=FILE")
    file = Path(name)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {file.parent} for {name}")
    if file.is_dir() or (file.exists() and file.stat().st_size):
        raise argparse.ArgumentTypeError(f"{name} is there, and not empty; name a file that the job may remove")
    return file


def add_runner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and how a job runs: before a target, and also after a workload's name."""
    names = [row.name for row in launchers()] + [SINGLE.name]
    group = parser.add_argument_group("runner", "how the job runs")
    group.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="what all ranks compute on (auto: GPUs where there are any; cuda: also AMD's)",
    )
    group.add_argument(
        "--backend",
        choices=("auto", *process_groups()),
        help="of a workload's process group: gloo, nccl, mpi4py (over the MPI that started the job; torch 2.14 or newer), or "
        "mpi where torch was built with it (auto: nccl on GPUs, xccl on Intel's; on CPUs mpi4py where it can be used, else gloo). For a "
        "script mpi4py only, which then serves one that says gloo or mpi, or names no backend",
    )
    group.add_argument(
        "--launcher",
        choices=names,
        metavar="NAME",
        help=f"read rank and size from this launcher's variables, whatever others are set: {', '.join(names)}",
    )
    group.add_argument(
        "--rendezvous",
        choices=WAYS,
        default="auto",
        help="how the ranks meet: env (MASTER_ADDR and MASTER_PORT), mpi, file (one host), hosts (a known list); "
        "auto takes the first that is possible",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="end if the ranks have not all met within this time (default: 300); a rank that cannot find rank 0 gives up "
        "earlier, by 5 s or half of a time below 10 s, and says why",
    )
    group.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="each rank leaves its state in DIR/state every two seconds, which `python -m runner top DIR` shows, and what it "
        "prints in DIR/output",
    )
    group.add_argument(
        "--prefix-output", action="store_true", help="begin each line with the rank that printed it: [3]"
    )
    group.add_argument(
        "--began",
        type=float,
        metavar="TIME",
        help="the job's start in seconds since 1970, from which --time-limit counts (default: now; set by `supervise`)",
    )
    group.add_argument(
        "--standby",
        action="store_const",
        const=True,
        help='import torch, then wait for the line "go on" on rank 0\'s standard input before the target starts (set by `supervise --standby`)',
    )
    group.add_argument(
        "--restart-in-place",
        type=not_negative,
        default=0,
        metavar="N",
        help="after a failure start all ranks again, up to N times, without the launcher and without MPI; each rank keeps a spare "
        "process that has imported torch",
    )
    group.add_argument(
        "--hang-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end the job if a workload finishes no micro-batch and no evaluation batch for this long (default: "
        f"{HANG_TIMEOUT:.0f}), or a script is in one call of torch.distributed for this long (default: no limit), and show where each "
        "rank is; what comes first, and the hooks of a step, may take five times as long; saving, an epoch's hooks, and a collective "
        "outside of the training, may take five sixths of --collective-timeout (25 minutes), or this long if that is more",
    )
    group.add_argument(
        "--collective-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end a collective that takes longer (default: 1800; in a script, what its init_process_group says, or "
        "torch's own default)",
    )


def parse(argv: Sequence[str], tools: Sequence[str] = ()) -> Request:
    """Read the runner's command line.

    Args:
        tools: the names of the tools. A tool parses everything after its name itself.

    Raises:
        UsageError: the command line is invalid.
        SystemExit: help or the version was asked for, and printed.
    """
    parser = Parser(
        prog="python -m runner",
        usage="python -m runner [OPTIONS] TARGET [ARGS...]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"runner {runner.__version__}")
    forms = {
        AS_MODULE: "the target is a module, run as a program",
        AS_CODE: "the target is code",
        NO_PYTHON: "the target is not for Python: execute it",
    }
    for form, what in forms.items():
        parser.add_argument(form, dest="form", action="store_const", const=form, default="", help=what)
    # One positional for target and arguments: if they were two, argparse would drop a "--" that follows the target.
    parser.add_argument(
        "command",
        metavar="TARGET [ARGS...]",
        nargs=argparse.REMAINDER,
        help="a tool, script, module or workload, and its own arguments",
    )
    add_runner_options(parser)
    group = parser.add_argument_group("script", "for a script that saves when told to; they come before its name")
    group.add_argument(
        "--on-preempt",
        type=_notice,
        metavar="usr1|touch=FILE",
        help="how to tell the script, at SIGTERM, at SIGUSR1 and before the time limit: send it SIGUSR1, or create FILE",
    )
    group.add_argument(
        "--time-limit",
        type=duration,
        metavar="TIME",
        help="how long the job may run, e.g. 1:30:00 (default: as Slurm or TORQUE says)",
    )
    group.add_argument(
        "--time-to-save",
        type=seconds,
        metavar="SECONDS",
        help="how long before the time limit it is told (default: a minute, or a tenth of the time if that is less), and how long after "
        "SIGTERM it may go on (default: 30)",
    )
    known = parser.parse_args(argv)
    command = known.command[1:] if known.command[:1] == ["--"] else known.command
    if not command:
        parser.error("no target given; for example workloads.mnist, train.py or explain")
    target, *arguments = command
    may_be_workload = not known.form and target not in tools and not is_path(target)
    if may_be_workload:
        # A workload also accepts the runner's options after its name; they override those before it.
        shared = Parser(prog=f"python -m runner {target}", add_help=False)
        add_runner_options(shared)
        shared.parse_known_args(arguments, known)
    return Request(
        target=target,
        form=known.form,
        may_be_workload=may_be_workload,
        arguments=tuple(arguments),
        launcher=known.launcher,
        rendezvous=known.rendezvous,
        device=known.device,
        backend=known.backend,
        timeout=known.timeout,
        collective_timeout=known.collective_timeout,
        hang_timeout=known.hang_timeout,
        log_folder=known.log_dir,
        prefixes_output=known.prefix_output,
        restarts=known.restart_in_place,
        on_preempt=known.on_preempt,
        time_limit=known.time_limit,
        time_to_save=known.time_to_save,
        began=known.began,
        standby=known.standby,
    )


# (option, kind of target on which it has no effect): what the error says.
_IDLE = {
    (
        "backend",
        "script",
    ): "a script names its backend itself, in init_process_group(); --backend mpi4py serves one that says gloo or mpi",
    ("backend", "tool"): "it has options of its own: see its --help",
    ("hang_timeout", "tool"): "it is for workloads",
    ("on_preempt", "workload"): "a workload saves by itself",
    ("on_preempt", "tool"): "it is for scripts",
    ("standby", "tool"): "it is for scripts and workloads",
    ("time_limit", "workload"): "a workload takes it after its name",
    ("time_limit", "tool"): "it is for scripts",
    ("time_to_save", "workload"): "a workload takes it after its name",
    ("time_to_save", "tool"): "it is for scripts",
}
_SHOWS_BACKENDS = "explain"
_SERVES_SCRIPTS = "mpi4py"


def refuse_idle_options(request: Request, target: Target) -> None:
    """Refuse an option that would have no effect on this kind of target.

    Raises:
        UsageError: there is one; the message says what to use instead.
    """
    name, kind = target.name, SCRIPT if target.is_program else target.kind
    for (option, of_kind), why in _IDLE.items():
        if (
            (option, name) != ("backend", _SHOWS_BACKENDS)
            and (option, of_kind, request.backend) != ("backend", SCRIPT, _SERVES_SCRIPTS)
            and of_kind == kind
            and getattr(request, option) is not None
        ):
            raise UsageError(f"--{option.replace('_', '-')} has no effect on {name}: {why}")
    if request.backend is not None and target.is_program and not target.runs_in_python:
        raise UsageError(f"--backend has no effect on {name}: --no-python starts a process that knows no such backend")
    if request.standby and request.restarts:
        raise UsageError("--standby and --restart-in-place do not go together", fix="take one of them")
    for option, given in (("--time-limit", request.time_limit), ("--time-to-save", request.time_to_save)):
        if given is not None and request.on_preempt is None:
            raise UsageError(f"{option} has no effect on {name}: add --on-preempt, by which a script is told to save")
