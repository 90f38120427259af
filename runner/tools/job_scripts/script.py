"""The job script of a request: written from those of mpi_scripts/, and handed to a scheduler."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

from runner.base.errors import RunnerError, UsageError
from runner.base.quantities import full_duration, positive, size_with_unit
from runner.command import given_in
from runner.launch.commands import MPI_SCRIPTS, MPIS, find_mpirun
from runner.launch.outer_job import for_a_new_job
from runner.launch.target import find_target
from runner.parsing import Parser
from runner.tools.job_scripts.schedulers import SCHEDULERS, STARTERS, Shape
from runner.tools.registry import tool_names, works_alone
from runner.training.settings import AUTO, shared_in

# Some module commands print an error and return 0. A module may be loaded by another name, which is-loaded knows; an old one
# does not know is-loaded, and may return 0 for that, too.
_LOAD = """\
load() {
  local before=${LOADEDMODULES-}
  module load "$1" || exit
  [[ :${LOADEDMODULES-}: == *:"$1"[:/]* || ${LOADEDMODULES-} != "$before" ]] && return
  module is-loaded "$1" 2>/dev/null && ! module is-loaded no-such-module 2>/dev/null && return
  echo "module load $1: it is not loaded (LOADEDMODULES=${LOADEDMODULES-}); see the message above, and module avail" >&2
  exit 1
}""".splitlines()
SUBMITTING = 60.0  # seconds that a scheduler may take to answer


def add_request(parser: Parser) -> None:
    """Add the options that say what a job asks its scheduler for, but for its nodes and names."""
    parser.add_argument(
        "--scheduler", choices=SCHEDULERS, help="whose script it is (default: the one whose commands are here)"
    )
    parser.add_argument(
        "--gpus-per-node", type=_gpus, default=("", 0), metavar="[TYPE:]N", help="e.g. 4 or h200:4 (default: none)"
    )
    parser.add_argument(
        "--ranks-per-node", type=positive, metavar="N", help="default: one per GPU, or 1 where none is asked for"
    )
    parser.add_argument(
        "--cores-per-rank",
        type=positive,
        default=4,
        metavar="N",
        help="for threads and data loaders (default: 4; LSF gives all of a host)",
    )
    parser.add_argument(
        "--memory",
        type=size_with_unit,
        metavar="SIZE",
        help="per node, e.g. 64G (× 2³⁰) or 64GB (× 10⁹) (default: the scheduler's; LSF gives all of a host)",
    )
    parser.add_argument(
        "--time-limit", type=full_duration, default=3600, metavar="[D-]H:MM:SS", help="limit (default: 1:00:00)"
    )
    parser.add_argument(
        "--mpi",
        choices=STARTERS,
        help="what starts the ranks: srun (Slurm's default: needs no MPI), or this MPI's mpirun (PBS's default: "
        "openmpi); LSF has its own jsrun",
    )
    parser.add_argument("--module", action="append", default=[], metavar="NAME", help="load it first; may be repeated")
    parser.add_argument("--queue", "--partition", type=word, metavar="NAME", help="default: the scheduler's own")
    parser.add_argument("--account", type=word, metavar="NAME", help="the project that pays")
    parser.add_argument(
        "--directive",
        type=_line,
        action="append",
        default=[],
        metavar="LINE",
        help="one more for the scheduler, as it stands, e.g. --directive=--qos=high; may be repeated",
    )


def script(options: argparse.Namespace) -> str:
    """The script of mpi_scripts/, with the request, this Python and the target filled in. A tool that starts the ranks is run once.

    Raises:
        UsageError: the scheduler or the MPI is not found, or what is asked for does not go together.
    """
    if options.scheduler is None:
        options.scheduler = _scheduler_here()
    scheduler = SCHEDULERS[options.scheduler]
    mpi = options.mpi or next(iter(scheduler.scripts))
    gpu_type, gpus = options.gpus_per_node
    ranks = options.ranks_per_node or gpus or 1
    if gpus and ranks > gpus:
        raise UsageError(
            f"--ranks-per-node {ranks} and --gpus-per-node {gpus}: a GPU is one rank's", fix="ask for as many"
        )
    for what, given in (("a GPU's type", gpu_type), ("--memory", options.memory), ("--requeue", options.requeue)):
        if given and what in scheduler.lacks:
            raise UsageError(f"--scheduler {options.scheduler} does not take {what}: {scheduler.lacks[what]}")
    if mpi not in scheduler.scripts:
        raise UsageError(
            f"--mpi {mpi}: with --scheduler {options.scheduler} the ranks are started by {' or '.join(scheduler.scripts)}",
            fix="choose that, or leave --mpi out",
        )
    kind = find_target(options.target, form=options.form, tools=tool_names()).kind
    shape = Shape(
        name=options.name,
        nodes=options.nodes,
        ranks_per_node=ranks,
        cores_per_rank=options.cores_per_rank,
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        memory=options.memory or 0,
        log=options.log or "",
        time=options.time_limit,
        queue=options.queue or "",
        account=options.account or "",
    )
    settings = {"PYTHON": sys.executable} | scheduler.settings(shape)
    if mpi in MPIS:
        settings |= _mpirun(mpi, has_modules=bool(options.module))
    requeue = scheduler.requeue(shape) if scheduler.requeue and options.requeue else None
    if requeue and kind == "tool":
        raise UsageError(
            f"--requeue: {options.target} is a tool, not a training",
            fix=f"leave it out; for supervise take --directive={shlex.quote(requeue.line)}, and "
            f"{' '.join(requeue.option)} after its workload",
        )
    given = shared_in(given_in(options.arguments), "resume", "requeue") if kind == "workload" else {}
    if given.get("requeue") and options.scheduler != "slurm":
        raise UsageError(
            f"{options.target} --requeue asks Slurm, and --scheduler is {options.scheduler}",
            fix=scheduler.lacks.get("--requeue", "give it to jobscript, before the target"),
        )
    if requeue and kind == "workload" and (checkpoint := given.get("resume")) not in (None, "", AUTO):
        raise UsageError(
            f"--requeue: with --resume {checkpoint} each start begins there again",
            fix="take --resume auto, with that checkpoint's folder as --checkpoint-dir",
        )
    target = [*filter(None, [options.form]), options.target, *options.arguments]
    if requeue and kind == "workload":
        for option in (("--resume", AUTO), requeue.option):
            if given.get(option[0].removeprefix("--").replace("-", "_")) in (None, False):
                target += option
    if gpus and not works_alone("" if options.form else options.target):
        target = ["--device", "cuda", *target]
    filled_in = [f"export {name}={_quoted(value)}" for name, value in settings.items()]
    lines = (MPI_SCRIPTS / scheduler.scripts[mpi]).read_text(encoding="utf-8").splitlines()
    added = [line.removeprefix(scheduler.mark).strip() for line in options.directive]
    again = [requeue.line] if requeue else []
    request = [f"{scheduler.mark} {line}" for line in [*scheduler.request(shape), *again, *added]]
    # Drop the file's own request and its examples of use (comments indented by three blanks).
    kept = [line for line in lines[1:] if not line.startswith((scheduler.mark, "#   "))]
    kept = [line for i, line in enumerate(kept) if line != "#" or kept[i - 1] != "#"]
    start = kept.index("set -euo pipefail")
    # Modules are loaded before this line: their scripts may use unset variables.
    modules = [*_LOAD, *(f"load {_quoted(name)}" for name in options.module)] if options.module else []
    body = [f"set -- {' '.join(_with_index(word, scheduler.index) for word in target)}", *kept[start + 1 :]]
    if works_alone("" if options.form else options.target):
        body = [re.sub(r'^exec .*(?="\$\{PYTHON)', "exec ", line) for line in body]
    return "\n".join([lines[0], *request, *kept[:start], *modules, kept[start], "", *filled_in, *body]) + "\n"


def _quoted(text: str) -> str:
    """A quoted word for bash, on one line: LSF treats every line that begins with its mark as a request."""
    return shlex.quote(text).replace("\n", "'$'\\n''")


def _with_index(text: str, variable: str) -> str:
    """A quoted word in which ``{index}`` is the job's number in its array; outside an array it stays as it is."""
    return (
        f'"${{{variable}-{{index\\}}}}"'.join(_quoted(part) if part else "" for part in text.split("{index}")) or "''"
    )


def _mpirun(mpi: str, *, has_modules: bool) -> dict[str, str]:
    """The mpirun found here, if it is of this MPI. A job with modules uses theirs.

    Raises:
        UsageError: none is found, or it is another MPI's.
    """
    if has_modules and not os.environ.get("MPIRUN"):
        return {}
    path, found = find_mpirun(f"--mpi {mpi}")
    if found != mpi:
        raise UsageError(
            f"--mpi {mpi}: {path} is {found}'s",
            fix=f"load {mpi}'s module, name it with --module, or set MPIRUN=/path/of/mpirun",
        )
    return {"MPIRUN": path}


def _scheduler_here() -> str:
    for name, scheduler in SCHEDULERS.items():
        if shutil.which(scheduler.submit):
            return name
    raise UsageError("--scheduler: none of sbatch, qsub and bsub is here", fix="name the one the script is for")


def submit(options: argparse.Namespace, text: str, environment: Mapping[str, str]) -> str:
    """Submit the script, and return the scheduler's answer.

    Args:
        environment: as this process was started with it: the job gets it, and has settings of its own.

    Raises:
        UsageError: its program is not found, or refuses the script.
        RunnerError: it does not answer.
    """
    scheduler = SCHEDULERS[options.scheduler]
    program = shutil.which(scheduler.submit)
    if program is None:
        raise UsageError(
            f"--submit: {scheduler.submit} is not on PATH",
            fix="submit where it is (a login node), or leave --submit out",
        )
    try:
        done = subprocess.run(
            [program],
            check=False,
            input=text,
            env=for_a_new_job(environment),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=SUBMITTING,
        )
    except subprocess.TimeoutExpired:
        raise RunnerError(f"{program} has not answered within {SUBMITTING:.0f} s", fix="is the scheduler up?") from None
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UsageError(f"{scheduler.submit} refused the job (code {done.returncode}): {reason}")
    return (done.stdout + done.stderr).strip()


def _gpus(text: str) -> tuple[str, int]:
    """(type or "", number) of ``[TYPE:]N``."""
    match = re.fullmatch(r"(?:([\w.+-]+):)?(\d+)", text)
    if match is None or int(match[2]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; for example 4 or h200:4")
    return match[1] or "", int(match[2])


def word(text: str, also: str = "") -> str:
    """A word that every scheduler takes as one."""
    if not re.fullmatch(rf"[\w.:+@=,{also}-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one word of letters, digits and . : + @ = , _ {also} -")
    return text


def path_word(text: str) -> str:
    return word(text, "/%")


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not one line")
    return text.strip()
