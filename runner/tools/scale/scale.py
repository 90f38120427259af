"""``python -m runner scale``: measure strong and weak scaling: run a command on several numbers of ranks, in turn.

    python -m runner scale workloads.resnet --batch-size 32
    python -m runner scale --ranks 1,2,4 --batch-size 32 train.py --lr 0.1
    python -m runner scale --ranks 4,8,16 -- \\
        srun -N {nodes} -n {ranks} python -m runner train.py
    python -m runner scale --plot both.png ddp.json fsdp.json

Start it without mpirun, in an allocation of the largest size: it starts the ranks of each size itself. Without a command of yours it
takes the launcher that is here, srun or mpirun. In a command of yours, after --, {ranks}, {nodes} and {hosts} (a:4,b:4) are filled in.

A step is a call of an optimizer's step, so a script needs no change. The samples of a step are known of a workload, whose options stand after
its name; of a script they are told before its name. If the batch of all ranks is the same in every size (--global-batch-size), scaling is
strong, else weak.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import REMAINDER, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.base.command_name import places_in
from runner.base.errors import RunnerError, UsageError
from runner.base.quantities import positive, positive_float, positives
from runner.hardware.resources import resources
from runner.job import Job
from runner.launch.commands import find_mpirun
from runner.launch.host_lists import hosts_of_job
from runner.launch.launcher_processes import RANK_STARTERS, launcher_process
from runner.launch.target import AS_MODULE, find_target
from runner.measuring.measured_run import StepsSeen, StepsWanted, read_measured
from runner.options.command import FORMS
from runner.options.parsing import Parser
from runner.tools.scale.results import plot_studies, print_study, write_study
from runner.tools.scale.study import Size, Study, read_study
from runner.tools.tables.output import check_output
from runner.tools.tables.table import show_progress

ALONE = "its ranks have no process group: each trains alone, and its efficiency says nothing"
_LAUNCHERS = {  # by whom the ranks are started where no command is given; cores are not bound, so that a rank has its threads
    "srun": "srun --kill-on-bad-exit=1 -N {nodes} -n {ranks}",
    "openmpi": "{mpirun} -np {ranks} --bind-to none",
    "mpich": "{mpirun} -n {ranks}",
    "intelmpi": "{mpirun} -n {ranks}",
}
_RUNNER = [sys.executable, "-m", "runner"]
_LONGEST = 1800.0  # seconds for a run
_GRACE = 10.0  # seconds from SIGTERM to SIGKILL
_UNEVEN = 1.25  # the mean of steps over their median
_WIDE = 0.05  # the rounds' distance from their median


def scale(job: Job, argv: list[str]) -> None:
    """Measure, print a table, and write what was asked for.

    Raises:
        UsageError: a size is beyond the allocation, a file cannot be written or is no study, or the command starts no runner.
        RunnerError: no size has been measured.
    """
    given = _parser().parse_args(argv)
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    is_command = "--" in argv and argv[argv.index("--") + 1 :] == words
    is_plot = bool(words) and all(word.endswith(".json") for word in words)
    if is_plot and given.plot is None:
        given.plot = "scale.png"
    check_output(given.json, given.plot, csv=given.csv, latex=given.latex)
    if not os.access(os.getcwd(), os.W_OK):
        raise UsageError(f"{os.getcwd()} cannot be written", fix="start it in a folder that all hosts share")
    if is_plot:
        plot_studies([(path.stem, read_study(path)) for path in map(Path, words)], given.plot)
        print(f"wrote {given.plot}")
        return
    if not words:
        raise UsageError("name a workload or a script", fix="for example workloads.resnet or train.py")
    if launcher_process(names=RANK_STARTERS) is not None:
        raise UsageError("scale starts mpirun or srun itself", fix="start it without")
    for number in (signal.SIGTERM, signal.SIGHUP):  # time limit or closed terminal: end the present run, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    hosts = _hosts(job.context.environment)
    sizes = _sizes(given.ranks, hosts)
    if not is_command:
        find_target(words[0], form=given.form, tools=())  # a wrong name is refused before anything is started
    target = [*filter(None, [given.form]), *words]
    command = words if is_command else [*_launcher(job.context.environment, hosts), *_RUNNER, *target]
    if len(sizes) > 1 and not any("{ranks}" in word for word in command):
        raise UsageError("the command has no {ranks}", fix="write for example -- mpirun -np {ranks} python -m runner …")
    study = Study(target=_target(command), sizes=sizes, command=shlex.join(["python", "-m", "runner", *sys.argv[1:]]))
    _measure(study, command, hosts, given)
    print_study(study)
    write_study(study, given)
    if not study.measured:
        raise RunnerError("no size has been measured", fix="see the causes above")


def _measure(study: Study, command: Sequence[str], hosts: Mapping[str, int], given: Namespace) -> None:
    """Run all sizes, in turn, so that a slow minute hits all of them."""
    end, longest = time.monotonic() + 60 * given.minutes, dict[int, float]()
    for number in range(given.rounds):
        for place, size in enumerate(study.sizes):
            if size.problem or (number and time.monotonic() > end):
                continue
            left = sum(longest.get(one.ranks, 0.0) for one in study.sizes[place:])
            left += (given.rounds - 1 - number) * sum(longest.values())
            about = f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left" if left else ""
            show_progress(f"{size.ranks} ranks, round {number + 1} of {given.rounds}{about}")
            began = time.monotonic()
            ranks, size.problem = _run(command, size, hosts, StepsWanted(warmup=given.warmup, steps=given.steps))
            longest[size.ranks] = max(time.monotonic() - began, longest.get(size.ranks, 0.0))
            if ranks:
                _take(size, ranks, given.global_batch_size or (given.batch_size or 0) * size.ranks)
                study.facts = study.facts | ranks[0].facts
    show_progress("")
    cores = os.cpu_count() or 1
    for size in study.measured:
        if size.spread > _WIDE:
            size.warnings.append(f"its rounds differ by {size.spread:.0%}")
        if size.ranks > cores * size.hosts:
            size.warnings.append(f"there are {cores * size.hosts} cores: ranks wait for one another")


def _run(
    command: Sequence[str], size: Size, hosts: Mapping[str, int], wanted: StepsWanted
) -> tuple[list[StepsSeen], str]:
    """Run the command once. Returns what its ranks have seen, and why there is nothing."""
    chosen, left = dict[str, int](), size.ranks
    for host, slots in hosts.items():
        chosen |= {host: min(slots, left)} if left else {}
        left -= chosen.get(host, 0)
    size.hosts = len(chosen)
    names = {
        "{ranks}": str(size.ranks),
        "{nodes}": str(size.hosts),
        "{hosts}": ",".join(f"{host}:{ranks}" for host, ranks in chosen.items()),
    }
    # All hosts should share it.
    with tempfile.TemporaryDirectory(prefix=".scale-", dir=os.getcwd(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        wanted.write(folder)
        words = _measuring(command, folder)
        for placeholder, value in names.items():
            words = [word.replace(placeholder, value) for word in words]
        log = folder / "output"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            except OSError as error:
                raise UsageError(f"{words[0]}: {error.strerror}") from None
            try:
                code = process.wait(_LONGEST)
            except subprocess.TimeoutExpired:
                return [], f"it has not ended within {_LONGEST:.0f} s"
            finally:
                _end(process)
        if code:
            return [], _cause(log, code)
        ranks = read_measured(folder)
        if len(ranks) != size.ranks:
            has = f"the job had {ranks[0].size}" if ranks and ranks[0].size != size.ranks else "do all hosts share it?"
            return [], f"{len(ranks)} of {size.ranks} ranks have left their times in {folder.parent}: {has}"
        if not ranks[0].seconds:
            return [], "it has ended before its steps were timed; fewer --warmup, or more data"
        return ranks, ""


def _measuring(command: Sequence[str], folder: Path) -> list[str]:
    """The command with the runner's option that measures.

    Raises:
        UsageError: it starts no runner.
    """
    if places := places_in(command):
        return [*command[: places[1]], f"--measure={folder}", *command[places[1] :]]
    raise UsageError(
        "the command does not start its ranks by the runner, which measures them",
        fix="put python -m runner before the script",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()  # a launcher then ends its ranks
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _take(size: Size, ranks: Sequence[StepsSeen], told: int) -> None:
    """Put what a run's ranks have seen into its row, as one more round: the median of the slowest rank's steps.

    Args:
        told: samples of all ranks per step, as this tool was told; 0: it was not.
    """
    steps = [max(one) for one in zip(*(rank.seconds for rank in ranks), strict=False)]
    median = statistics.median(steps)
    size.rounds.append(median)
    size.batch = ranks[0].batch or told
    size.waiting = statistics.fmean(statistics.median(rank.waiting) for rank in ranks)
    size.memory = max(rank.memory for rank in ranks)
    for holds, text in (
        (len(steps) < ranks[0].asked, f"its training ended after {len(steps)} of {ranks[0].asked} timed steps"),
        (any(rank.repeats for rank in ranks), f"the data is shorter than {len(steps)} steps, and began again"),
        (
            statistics.fmean(steps) > _UNEVEN * median,
            "some steps take much longer than the median: data, evaluation or saving between them",
        ),
        (len(ranks) > 1 and not all(rank.is_joined for rank in ranks), ALONE),
        (
            told not in (0, size.batch),
            f"its step has {size.batch} samples, and not {told}: a workload's options stand after its name",
        ),
    ):
        if holds and text not in size.warnings:
            size.warnings.append(text)


def _cause(log: Path, code: int) -> str:
    """Return the cause in one line: the runner's first line, or the program's last one if the runner knows only an exit code."""
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ours = [place for place, line in enumerate(said) if line.startswith("runner: ")]
    if not ours:
        return said[-1].strip() if said else f"no word, exit code {code}"
    first = said[ours[0]].removeprefix("runner: ")
    return f"{said[ours[0] - 1].strip()} ({first})" if ours[0] and "ended with code" in first else first


def _launcher(environment: Mapping[str, str], hosts: Mapping[str, int]) -> list[str]:
    """Return the command that starts ranks here, with placeholders.

    Raises:
        UsageError: there is no launcher that is known.
    """
    if environment.get("SLURM_JOB_ID") and shutil.which("srun"):
        return _LAUNCHERS["srun"].split()
    path, mpi = find_mpirun("scale")
    if mpi not in _LAUNCHERS:
        raise UsageError(f"{path} is of {mpi}", fix="give the whole command after --, with {ranks}")
    more = ["--host", "{hosts}"] if mpi == "openmpi" and len(hosts) > 1 else []
    return [path if word == "{mpirun}" else word for word in _LAUNCHERS[mpi].split()] + more


def _hosts(environment: Mapping[str, str]) -> dict[str, int]:
    """The hosts, and how many ranks each has room for.

    Raises:
        UsageError: those of this job cannot be read.
    """
    try:
        found = hosts_of_job(environment)
    except (OSError, ValueError) as error:
        raise UsageError(f"the hosts of this job: {error}") from None
    own = resources(environment)
    return found or {"localhost": len(own.gpus) or len(os.sched_getaffinity(0))}


def _sizes(asked: Sequence[int] | None, hosts: Mapping[str, int]) -> list[Size]:
    """The numbers of ranks: as asked, else the powers of two and as many as there is room for.

    Raises:
        UsageError: the allocation has not so many.
    """
    most = sum(hosts.values())
    if asked is None:
        asked = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    elif max(asked) > most and len(hosts) > 1:
        raise UsageError(
            f"--ranks {','.join(map(str, asked))}: this job has room for {most}", fix=f"leave {max(asked)} out"
        )
    return [Size(ranks=ranks) for ranks in sorted(set(asked))]


def _target(command: Sequence[str]) -> str:
    """Return the target's name for titles: the first word after the runner and its options."""
    place = next(number for number, word in enumerate(_measuring(command, Path())) if word.startswith("--measure="))
    return next((word for word in command[place:] if not word.startswith("-")), "")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner scale", description=__doc__)
    parser.add_argument(
        AS_MODULE, dest="form", action="store_const", const=AS_MODULE, default="", help=FORMS[AS_MODULE]
    )
    parser.add_argument(
        "--ranks", type=positives, metavar="N,…", help="numbers of ranks (default: 1, 2, 4, … as there is room)"
    )
    parser.add_argument("--batch-size", type=positive, metavar="N", help="samples per rank and step of a script")
    parser.add_argument("--global-batch-size", type=positive, metavar="N", help="samples of all ranks per step")
    parser.add_argument("--steps", type=positive, default=100, help="timed steps per run (default: 100)")
    parser.add_argument("--warmup", type=positive, default=10, help="steps before the timed ones (default: 10)")
    parser.add_argument("--rounds", type=positive, default=3, help="runs per number of ranks (default: 3)")
    parser.add_argument(
        "--minutes", type=positive_float, default=20.0, help="begin no round after so many minutes (default: 20)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the study, which --plot reads")
    parser.add_argument("--csv", metavar="FILE", help="write the table")
    parser.add_argument("--latex", metavar="FILE", help="write the table, for booktabs")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the study (needs matplotlib)")
    # Target and words are one: if they were two, argparse would take options from among the words.
    parser.add_argument(
        "command", nargs=REMAINDER, metavar="TARGET", help="a workload or a script and its words; or -- and a command"
    )
    return parser
