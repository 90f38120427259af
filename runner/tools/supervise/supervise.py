"""``python -m runner supervise``: start a job again when it fails in a way that a restart can fix.

    python -m runner supervise -- mpirun -np 4 python -m runner train.py
    python -m runner supervise --max-restarts 9 -- srun python -m runner a.py

With a workload, give it --resume auto.

Everything after -- is the command, with its launcher. It is started again from the newest intact checkpoint (--resume auto) after
a rank was killed, has hung, lost its host or raised an error. It is not after a wrong request (exit code 2), after the same error of
the program at the same step as before (or twice before the first step), after a signal to supervise, or when it asks to be queued
again (75).

    python -m runner supervise --spares 1 -- mpirun --host a,b,c -np 2 \\
        python -m runner train.py                        on a and b first

With --spares or --min-ranks a host is left out once it has lost a rank with its guard, or has failed first in two attempts in a
row. mpirun, mpiexec and srun; hosts by their options, or those of the Slurm or PBS job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGUSR1, Signals

from runner.base.command_name import places_in
from runner.base.environment import unset_variables
from runner.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE, UsageError
from runner.base.locks import held
from runner.base.quantities import nonempty_path, not_negative, positive
from runner.job import Job
from runner.launch.outer_job import places_of_step
from runner.options.command import Request, parse
from runner.options.parsing import Parser
from runner.tools.registry import summaries
from runner.tools.supervise.attempts import Attempt, SignalRelay, passing_signals_on, run_attempt
from runner.tools.supervise.command_hosts import CommandHosts, read_hosts
from runner.training.settings import shared_in

_LOG = "attempts.jsonl"
_BY_OTHERS = ("SIGKILL", "SIGTERM")  # the other signals come of the program's errors


def supervise(job: Job, argv: list[str]) -> None:
    """Start the command until it ends well, or a restart would not help.

    Raises:
        UsageError: the command starts no runner, or the log cannot be written.
        SystemExit: with the last attempt's exit code.
    """
    del job
    given = _parser().parse_args(argv)
    given.log_dir = given.log_dir.resolve()  # the launcher may start the ranks in another folder
    end, place = _places_in(given.command)
    request = _request(given.command[place:])
    if request is not None and request.job.log_dir is not None:
        raise UsageError("supervise: --log-dir is given to the command", fix="give it to supervise, before the --")
    is_workload = request is not None and request.may_be_workload  # whose steps are known
    if request is not None and is_workload and shared_in(request.given, "resume").get("resume") is None:
        _print("the command has no --resume auto; unless the workload's settings do, each restart begins with step 0")
    hosts = _hosts(given, end)
    unset_variables(places_of_step(os.environ))
    with _only_one_in(given.log_dir), passing_signals_on() as signals:
        code = _start_until_done(given, end, place, hosts, signals, is_workload=is_workload)
    sys.exit(code)


def _start_until_done(
    given: argparse.Namespace,
    end: int,
    place: int,
    hosts: CommandHosts | None,
    signals: SignalRelay,
    *,
    is_workload: bool,
) -> int:
    """Start the command until it ends well, or a restart would not help. Returns the exit code."""
    log, began = given.log_dir / _LOG, time.time()
    earlier = _earlier_attempts(log)  # of a supervise before this one, as in a job that was queued again
    last: Attempt | None = None
    left_out: list[str] = []

    def command_of(folder: Path) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--log-dir", str(folder), "--began", f"{began:.0f}"]
        command = [*given.command[:place], *options, *given.command[place:]]
        if hosts is not None:
            command[:end] = hosts.command(hosts.without(left_out), folder / "hosts")
        return command

    for number in itertools.count(earlier + 1):
        folder = given.log_dir / f"attempt-{number}"
        is_last = number - earlier > given.max_restarts
        if signals.unsent:
            name, code = _end_by(signals.unsent)
            _print(f"{name}: not started")
            return code
        attempt = run_attempt(number, command_of(folder), folder, signals)
        reason = _reason_to_end(attempt, last, given, is_workload=is_workload, is_last=is_last)
        how = "started again"
        if hosts is not None and not reason and (host := _host_to_leave(attempt, last, hosts)):
            left_out.append(host)
            reason, how = _without(hosts, left_out, given.min_ranks)
        code = attempt.job_code
        if signals.unsent and code not in (EXIT_OK, EXIT_USAGE, EXIT_REQUEUE):
            name, code = _end_by(signals.unsent)
            reason = f"{name} came, so it is not started again"
        attempt = replace(attempt, next=reason or how)
        _note(log, attempt)
        if attempt.code == EXIT_OK:
            return EXIT_OK
        _print(
            f"attempt {number} ended with code {attempt.code} after {attempt.seconds:.0f} s{_cause(attempt)}: {attempt.next}"
        )
        if reason:
            return code
        last = attempt
    raise AssertionError  # count() does not end


@contextmanager
def _only_one_in(folder: Path) -> Iterator[None]:
    """Make the folder, and keep another supervise out: it would take the same numbers, and remove the ranks' files.

    Raises:
        UsageError: the folder cannot be made, or another supervise runs in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--log-dir: cannot write {folder}: {error.strerror}", fix="name another folder") from None
    with held([(folder, "--log-dir")], _print):
        yield


def _earlier_attempts(log: Path) -> int:
    """Return the number of attempts in a log, each of which has a line.

    Raises:
        UsageError: the log cannot be written.
    """
    try:
        with open(log, "a+", encoding="utf-8", errors="replace") as file:
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):
                file.write("\n")  # a line was cut off
            return len(text.splitlines())
    except OSError as error:
        raise UsageError(f"--log-dir: cannot write {log}: {error.strerror}", fix="name another folder") from None


def _note(log: Path, attempt: Attempt) -> None:
    """Append an attempt to the log. A job continues without its log."""
    try:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")
    except OSError as error:
        _print(f"cannot write {log}: {error.strerror}; continuing without it")


def _end_by(signals: list[int]) -> tuple[str, int]:
    """Return the name of the signal that counts, one that ends if there is one, and the exit code.

    Nothing runs, so nothing has to be saved: a warning asks to be queued again.
    """
    number = next((number for number in signals if number != SIGUSR1), SIGUSR1)
    return Signals(number).name, EXIT_REQUEUE if number == SIGUSR1 else 128 + number


def _parser() -> Parser:
    parser = Parser(prog="python -m runner supervise", description=__doc__)
    parser.add_argument("--max-restarts", type=not_negative, default=3, metavar="N", help="most restarts (default: 3)")
    parser.add_argument(
        "--spares",
        type=not_negative,
        default=0,
        metavar="N",
        help="keep the last N hosts idle as replacements (default: 0)",
    )
    parser.add_argument(
        "--min-ranks",
        type=positive,
        metavar="N",
        help="if no spare host is left, continue with fewer ranks, at least N; --global-batch-size keeps the batch as it is",
    )
    parser.add_argument(
        "--log-dir",
        type=nonempty_path,
        default=Path("supervise"),
        metavar="DIR",
        help="folder that all hosts share (default: supervise)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command with its launcher")
    return parser


def _places_in(command: list[str]) -> tuple[int, int]:
    """Return where a command's launcher ends and where the runner's options begin. Remove the ``--`` before it.

    Raises:
        UsageError: it starts no runner.
    """
    if command[:1] == ["--"]:
        del command[0]
    if places := places_in(command):
        return places
    raise UsageError(
        "supervise: the command does not start a runner",
        fix="for example: supervise -- mpirun -np 4 python -m runner workloads.mnist --resume auto",
    )


def _request(arguments: list[str]) -> Request | None:
    """Return the runner's own arguments; None if they cannot be read here, or ask for help.

    The ranks may be able to read them: in another folder with --config's file, or in a container.
    """
    try:
        return parse(arguments, summaries())
    except UsageError as error:
        _print(f"the command's options are not checked, nor whether it resumes: {error}")
    except SystemExit:
        pass
    return None


def _hosts(given: argparse.Namespace, end: int) -> CommandHosts | None:
    """Return the command's hosts; None if none is ever left out.

    Raises:
        UsageError: they are not known, or its ranks are not, or too few.
    """
    if not given.spares and given.min_ranks is None:
        return None
    hosts = read_hosts(given.command[:end], os.environ, given.spares)
    if given.min_ranks is not None and hosts.ranks is None:
        raise UsageError("--min-ranks: the command does not say how many ranks it starts", fix="give it -np")
    if given.min_ranks is not None and hosts.ranks is not None and given.min_ranks > hosts.ranks:
        raise UsageError(f"--min-ranks {given.min_ranks}: the command starts {hosts.ranks} ranks", fix="allow fewer")
    return hosts


def _reason_to_end(
    attempt: Attempt, last: Attempt | None, given: argparse.Namespace, *, is_workload: bool, is_last: bool
) -> str:
    """Return why a job is not started again; "" if it is."""
    if attempt.is_told:
        return "supervise was told to end"
    if attempt.left:
        return f"{attempt.left} still run, and would write the same checkpoints"
    fixed = {
        EXIT_OK: "done",
        EXIT_USAGE: "the request is wrong, and a restart does not fix that",
        EXIT_REQUEUE: "it asks to be queued again",
    }
    if attempt.job_code in fixed:
        return fixed[attempt.job_code]
    is_programs = bool(attempt.what) and not attempt.is_lost and attempt.ended_by not in _BY_OTHERS
    is_again = last is not None and is_programs and (attempt.what, attempt.step) == (last.what, last.step)
    if is_again and attempt.step:
        return f"the same error at the same step ({attempt.step}) as before"
    if is_again and is_workload and attempt.rank_code == EXIT_FAILURE:  # a script may have come further
        return "the same error before the first step, as before"
    if is_last:
        return f"--max-restarts {given.max_restarts} are over"
    return ""


def _host_to_leave(attempt: Attempt, last: Attempt | None, hosts: CommandHosts) -> str | None:
    """Return the host that the next attempt leaves out, if any."""
    is_again = last is not None and attempt.host == last.host
    is_sick = attempt.is_lost or is_again
    return hosts.name_of(attempt.host, attempt.addresses) if is_sick and attempt.host else None


def _without(hosts: CommandHosts, left_out: list[str], min_ranks: int | None) -> tuple[str, str]:
    """Return why a job is not started without these hosts ("" if it is), and how it is started."""
    left = hosts.without(left_out)
    ranks = hosts.ranks_on(left)
    without, on = " and ".join(left_out), ", ".join(host.name for host in left) or "no host"
    if not left or (min_ranks is None and len(left) < hosts.working):
        return f"no spare host is left for {without}", ""
    if ranks is not None and ranks < (min_ranks or hosts.ranks or 0):
        return f"without {without} there is room for {ranks} ranks, on {on}", ""
    return "", f"started again without {without}, on {on}" + (f" with {ranks} ranks" if ranks is not None else "")


def _cause(attempt: Attempt) -> str:
    if attempt.rank is None:
        return ""
    return f" (rank {attempt.rank} on {attempt.host}, step {attempt.step}: {attempt.what or 'no cause was left'})"


def _print(text: str) -> None:
    print(f"supervise: {text}", file=sys.stderr, flush=True)
