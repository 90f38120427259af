"""``python -m runner jobscript``: write a job script for a scheduler, or submit it.

    python -m runner jobscript --nodes 2 --time-limit 1:00:00 workloads.mnist
    python -m runner jobscript --gpus-per-node h200:4 --memory 64G train.py
    python -m runner jobscript --scheduler pbs --module OpenMPI --submit x.py
    python -m runner jobscript --requeue --time-limit 4:00:00 workloads.mnist

The scripts are those of mpi_scripts/, with the request, the target and this Python filled in. Options of jobscript
come before the target; everything after it belongs to the target. A job that asks for GPUs computes on them or fails
(--device cuda).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from runner.base.errors import RunnerError, UsageError
from runner.base.quantities import full_duration, nonempty_path, positive, size_with_unit
from runner.command import given_in
from runner.job import Job
from runner.launch.commands import MPI_SCRIPTS, MPIS, find_mpirun
from runner.launch.detect import is_reporting
from runner.launch.outer_job import for_a_new_job
from runner.launch.target import AS_MODULE, find_target
from runner.parsing import Parser
from runner.tools.jobscript.schedulers import SCHEDULERS, STARTERS, Scheduler, Shape
from runner.tools.registry import tool_names, works_alone
from runner.training.settings import AUTO, shared_in

SUBMITTING = 60.0  # seconds that a scheduler may take to answer


def jobscript(job: Job, argv: list[str]) -> None:
    """Write the script to standard output or a file, or submit it.

    Raises:
        UsageError: the scheduler or the MPI is not found, or the scheduler refuses the request.
    """
    options = _parser().parse_args(argv)
    if not is_reporting(os.environ):
        return  # started by mpirun: only one rank writes the script
    if options.scheduler is None:
        options.scheduler = _scheduler_here()
    text = _text(options)
    if options.output:
        _write(options.output, text)
    if options.submit:
        print(_submit(SCHEDULERS[options.scheduler], text))
    elif not options.output:
        print(text, end="")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner jobscript", description=__doc__)
    parser.add_argument(
        "--scheduler", choices=SCHEDULERS, help="whose script it is (default: the one whose commands are here)"
    )
    parser.add_argument("--nodes", type=positive, default=1, metavar="N", help="hosts (default: 1)")
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
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="at the time limit the job saves, goes back into the queue and then continues (Slurm, LSF): a workload gets "
        "the options for it; a script saves, then calls scontrol requeue $SLURM_JOB_ID itself (Slurm) or ends with 75 "
        "(LSF; docs/train/preemption.md)",
    )
    parser.add_argument("--queue", "--partition", type=_word, metavar="NAME", help="default: the scheduler's own")
    parser.add_argument("--account", type=_word, metavar="NAME", help="the project that pays")
    parser.add_argument("--name", type=_word, default="train", help="of the job (default: train)")
    parser.add_argument(
        "--log",
        type=_word_of_paths,
        metavar="FILE",
        help="for what the job prints, with the scheduler's own %%-signs, e.g. logs/%%j.out in a folder that is there "
        "(default: NAME-JOBID.out; PBS: NAME.oJOBID)",
    )
    parser.add_argument(
        "--directive",
        type=_line,
        action="append",
        default=[],
        metavar="LINE",
        help="one more for the scheduler, as it stands, e.g. --directive=--qos=high; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", type=nonempty_path, metavar="FILE", help="write the script there instead of printing it"
    )
    parser.add_argument("--submit", action="store_true", help="hand it to the scheduler, and print what that answers")
    parser.add_argument(
        AS_MODULE,
        dest="form",
        action="store_const",
        const=AS_MODULE,
        default="",
        help="the target is a module, run as a program",
    )
    parser.add_argument("target", metavar="TARGET", help="what to run: see python -m runner --help")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the target's own arguments")
    return parser


def _text(options: argparse.Namespace) -> str:
    """The script of mpi_scripts/, with the request, this Python and the target filled in."""
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
    filled_in = [
        *(f"export {name}={_quoted(value)}" for name, value in settings.items()),
        f"set -- {' '.join(map(_quoted, target))}",
    ]
    lines = (MPI_SCRIPTS / scheduler.scripts[mpi]).read_text(encoding="utf-8").splitlines()
    added = [line.removeprefix(scheduler.mark).strip() for line in options.directive]
    again = [requeue.line] if requeue else []
    request = [f"{scheduler.mark} {line}" for line in [*scheduler.request(shape), *again, *added]]
    # Drop the file's own request and its examples of use (comments indented by three blanks).
    kept = [line for line in lines[1:] if not line.startswith((scheduler.mark, "#   "))]
    kept = [line for i, line in enumerate(kept) if line != "#" or kept[i - 1] != "#"]
    start = kept.index("set -euo pipefail")
    # Modules are loaded before this line: their scripts may use unset variables.
    modules = [f"module load {_quoted(name)} || exit" for name in options.module]
    return (
        "\n".join([lines[0], *request, *kept[:start], *modules, kept[start], "", *filled_in, *kept[start + 1 :]]) + "\n"
    )


def _quoted(text: str) -> str:
    """A quoted word for bash, on one line: LSF treats every line that begins with its mark as a request."""
    return shlex.quote(text).replace("\n", "'$'\\n''")


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


def _submit(scheduler: Scheduler, text: str) -> str:
    """Submit the script, and return the scheduler's answer.

    Raises:
        UsageError: its program is not found, or refuses the script.
        RunnerError: it does not answer.
    """
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
            env=for_a_new_job(os.environ),
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None


def _gpus(text: str) -> tuple[str, int]:
    """(type or "", number) of ``[TYPE:]N``."""
    match = re.fullmatch(r"(?:([\w.+-]+):)?(\d+)", text)
    if match is None or int(match[2]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; for example 4 or h200:4")
    return match[1] or "", int(match[2])


def _word(text: str, also: str = "") -> str:
    if not re.fullmatch(rf"[\w.:+@=,{also}-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one word of letters, digits and . : + @ = , _ {also} -")
    return text


def _word_of_paths(text: str) -> str:
    return _word(text, "/%")


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not one line")
    return text.strip()
