"""``python -m runner jobscript``: write a job script for a scheduler, or submit it.

    python -m runner jobscript --nodes 2 --time-limit 1:00:00 workloads.mnist
    python -m runner jobscript --gpus-per-node h200:4 --memory 64G train.py
    python -m runner jobscript --scheduler pbs --module OpenMPI --submit x.py
    python -m runner jobscript --requeue --time-limit 4:00:00 workloads.mnist
    python -m runner jobscript --site lumi --nodes 2 --account p1 train.py
    python -m runner jobscript --directive=--array=0-9 train.py --seed {index}

A site may change the scripts' templates: slurm.sh.j2, pbs.sh.j2 and lsf.sh.j2 in mpi_scripts/. Options of jobscript
come before the target. Everything after the target belongs to the target; {index} there is the job's number in an array.
A job that asks for GPUs computes on them or fails (--device cuda).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import full_duration, nonempty_path, positive, size_with_unit
from runner.job import Job
from runner.launch.detect import is_reporting
from runner.launch.outer_job import for_a_new_job
from runner.launch.target import AS_MODULE
from runner.options.parsing import Parser
from runner.tools.jobscript.request import SCHEDULERS, job_script
from runner.tools.jobscript.site import load_site, site_names


def jobscript(job: Job, argv: list[str]) -> None:
    """Write the script to standard output or a file, or submit it.

    Raises:
        UsageError: the scheduler or the MPI is not found, or the scheduler refuses the request.
    """
    options = parse_request(argv)
    if not is_reporting(os.environ):
        return  # started by mpirun: only one rank writes the script
    text = job_script(options)
    if options.output:
        write(options.output, text)
    if options.submit:
        print(_submit(SCHEDULERS[options.scheduler].submit, text, job.context.environment))
    elif not options.output:
        print(text, end="")


def parse_request(argv: list[str]) -> argparse.Namespace:
    """Return a request, with the defaults of its site.

    Raises:
        UsageError: the site is not known, or the request does not fit it.
    """
    options = request_parser().parse_args(argv)
    if options.site is None:
        return options
    site = load_site(options.site)
    parser = request_parser()
    parser.set_defaults(**site.defaults)
    options = parser.parse_args(argv)
    options.site = site
    options.modules = [*site.modules, *options.modules]
    options.directives = [*map(_directive, site.directives), *options.directives]
    starter = site.mpi or SCHEDULERS[site.scheduler].starters[0]
    if options.scheduler != site.scheduler or (site.launch and (options.mpi or starter) != starter):
        raise UsageError(
            f"--site {site.name}: its options are for {site.scheduler} and {starter}",
            fix="leave --mpi, --scheduler or --site out",
        )
    gpus, wanted = options.gpus_per_node[1], (site.gpus_per_node, site.gpus_per_node, site.cores_per_rank)
    shape = gpus, options.ranks_per_node or gpus, options.cores_per_rank
    if site.whole_nodes and shape != wanted:
        texts = ["{} GPUs, {} ranks per node and {} cores per rank".format(*one) for one in (wanted, shape)]
        raise UsageError(
            f"--site {site.name}: its binding is for {texts[0]}, and not for {texts[1]}",
            fix="take whole nodes, or leave --site out",
        )
    return options


def request_parser() -> Parser:
    """Return the parser of a request. Its options have the names that the templates use."""
    parser = Parser(prog="python -m runner jobscript", description=__doc__)
    add = parser.add_argument
    add(
        "--site",
        metavar="NAME",
        help=f"take the options, modules and variables of this site's documentation, unless given here: {', '.join(site_names())}",
    )
    starters = dict.fromkeys(name for scheduler in SCHEDULERS.values() for name in scheduler.starters)
    add("--scheduler", choices=SCHEDULERS, help="write for this scheduler (default: the one whose commands are here)")
    _add_resources(parser)
    add(
        "--mpi",
        choices=starters,
        help="start the ranks by srun (Slurm's default: needs no MPI), or by this MPI's mpirun (PBS's default: openmpi); "
        "LSF has its own jsrun",
    )
    add(
        "--module",
        dest="modules",
        action="append",
        default=[],
        metavar="NAME",
        help="load this module first; may be repeated",
    )
    add(
        "--directive",
        dest="directives",
        type=_directive,
        action="append",
        default=[],
        metavar="LINE",
        help="add a line for the scheduler, unchanged, e.g. --directive=--qos=high; may be repeated",
    )
    add(
        "--requeue",
        action="store_true",
        help="at the time limit the job saves, goes back into the queue and then continues (Slurm, LSF): a workload gets "
        "the options for it; a script saves, then calls scontrol requeue $SLURM_JOB_ID itself (Slurm) or ends with 75 "
        "(LSF; docs/train/preemption.md)",
    )
    add("--name", type=_word, default="train", help="name of the job (default: train)")
    add(
        "--log",
        type=partial(_word, also="/%"),
        metavar="FILE",
        help="write what the job prints there; %%-signs are the scheduler's, e.g. logs/%%j.out in an existing folder "
        "(default: NAME-JOBID.out; PBS: NAME.oJOBID)",
    )
    add("-o", "--output", type=nonempty_path, metavar="FILE", help="write the script there instead of printing it")
    add("--submit", action="store_true", help="submit the script, and print the scheduler's answer")
    add(
        AS_MODULE,
        dest="form",
        action="store_const",
        const=AS_MODULE,
        default="",
        help="the target is a module, run as a program",
    )
    add("target", metavar="TARGET", help="what to run: see python -m runner --help")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the target's own arguments")
    return parser


def _add_resources(parser: Parser) -> None:
    add = parser.add_argument
    add("--nodes", type=positive, default=1, metavar="N", help="number of hosts (default: 1)")
    add("--gpus-per-node", type=_gpus, default=("", 0), metavar="[TYPE:]N", help="GPUs, e.g. h200:4 (default: none)")
    add("--ranks-per-node", type=positive, metavar="N", help="ranks (default: one per GPU, or 1 without GPUs)")
    add(
        "--cores-per-rank",
        type=positive,
        default=4,
        metavar="N",
        help="cores for threads and data loaders (default: 4; LSF gives all of a host)",
    )
    add(
        "--memory",
        type=size_with_unit,
        metavar="SIZE",
        help="memory per host, e.g. 64G (× 2³⁰) or 64GB (× 10⁹) (default: the scheduler's; LSF gives all of it)",
    )
    add("--time-limit", type=full_duration, default=3600, metavar="[D-]H:MM:SS", help="time limit (default: 1:00:00)")
    add("--queue", "--partition", type=_word, metavar="NAME", help="queue or partition (default: the scheduler's own)")
    add("--account", type=_word, metavar="NAME", help="project that pays")


def write(path: Path, text: str) -> None:
    """Write a script that can be run.

    Raises:
        UsageError: the path cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None


def _submit(name: str, text: str, environment: Mapping[str, str]) -> str:
    """Submit a script, and return the scheduler's answer.

    Args:
        name: the scheduler's program.
        environment: this process's as it was started; the job gets all but an outer job's settings.

    Raises:
        UsageError: the program is not found, or refuses the script.
    """
    program = shutil.which(name)
    if program is None:
        raise UsageError(
            f"--submit: {name} is not on PATH", fix="submit where it is (a login node), or leave --submit out"
        )
    done = subprocess.run(
        [program],
        check=False,
        input=text,
        env=for_a_new_job(environment),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UsageError(f"{name} refused the job (code {done.returncode}): {reason}")
    return (done.stdout + done.stderr).strip()


def _gpus(text: str) -> tuple[str, int]:
    """Return (type or "", number) of ``[TYPE:]N``."""
    match = re.fullmatch(r"(?:([\w.+-]+):)?(\d+)", text)
    if match is None or (match[1] and int(match[2]) < 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; for example 4 or h200:4")
    return match[1] or "", int(match[2])


def _word(text: str, also: str = "") -> str:
    """Return a word that every scheduler takes as one."""
    if not re.fullmatch(rf"[\w.:+@=,{also}-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one word of letters, digits and . : + @ = , _ {also} -")
    return text


def _directive(text: str) -> str:
    """Return a line for the scheduler, without the mark with which scripts begin it."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not one line")
    return re.sub(r"^#(SBATCH|PBS|BSUB)\b", "", text.strip()).strip()
