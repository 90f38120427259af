"""``python -m runner jobscript``: write a job script for a scheduler, or submit it.

    python -m runner jobscript --nodes 2 --time-limit 1:00:00 workloads.mnist
    python -m runner jobscript --gpus-per-node h200:4 --memory 64G train.py
    python -m runner jobscript --scheduler pbs --module OpenMPI --submit x.py
    python -m runner jobscript --requeue --time-limit 4:00:00 workloads.mnist
    python -m runner jobscript --directive=--array=0-9 train.py --seed {index}

The scripts are those of mpi_scripts/, with the request, the target and this Python filled in. Options of jobscript
come before the target; everything after it belongs to the target, in whose words {index} is the job's number in an array. A job that asks for GPUs computes on them or fails
(--device cuda).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import nonempty_path, positive
from runner.job import Job
from runner.launch.detect import is_reporting
from runner.launch.target import AS_MODULE
from runner.parsing import Parser
from runner.tools.job_scripts.script import add_request, path_word, script, submit, word


def jobscript(job: Job, argv: list[str]) -> None:
    """Write the script to standard output or a file, or submit it.

    Raises:
        UsageError: the scheduler or the MPI is not found, or the scheduler refuses the request.
    """
    options = _parser().parse_args(argv)
    if not is_reporting(os.environ):
        return  # started by mpirun: only one rank writes the script
    text = script(options)
    if options.output:
        _write(options.output, text)
    if options.submit:
        print(submit(options, text, job.context.environment))
    elif not options.output:
        print(text, end="")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner jobscript", description=__doc__)
    parser.add_argument("--nodes", type=positive, default=1, metavar="N", help="hosts (default: 1)")
    add_request(parser)
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="at the time limit the job saves, goes back into the queue and then continues (Slurm, LSF): a workload gets "
        "the options for it; a script saves, then calls scontrol requeue $SLURM_JOB_ID itself (Slurm) or ends with 75 "
        "(LSF; docs/train/preemption.md)",
    )
    parser.add_argument("--name", type=word, default="train", help="of the job (default: train)")
    parser.add_argument(
        "--log",
        type=path_word,
        metavar="FILE",
        help="for what the job prints, with the scheduler's own %%-signs, e.g. logs/%%j.out in a folder that is there "
        "(default: NAME-JOBID.out; PBS: NAME.oJOBID)",
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None
