"""``python -m runner [OPTIONS] TARGET [ARGS...]``: the steps from the environment to the target."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

from runner.comm.choice import with_backend, with_spare_cores
from runner.comm.ended import ended_ranks
from runner.dispatch import dispatch
from runner.errors import EXIT_FAILURE, EXIT_OK, RunnerError, UsageError
from runner.guard.launcher import launcher_of
from runner.guard.watch import Lifeline, Words, start_worker
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.detect import detect, may_speak
from runner.launch.misfits import idle_tasks, refuse_misfit
from runner.launch.table import SINGLE
from runner.leaving import leave
from runner.options import Request, parse, refuse_idle_options
from runner.placement import Placement, Resources, as_record, place_all, resources
from runner.rendezvous.endpoint import allow_open_files
from runner.rendezvous.handshake import check, own_record
from runner.rendezvous.meeting import choose_way, meet
from runner.rendezvous.mpi_library import library_of_launcher
from runner.rendezvous.topology import Topology, ranks_text
from runner.target import Target, find_target
from runner.tools import examines, shows_training, tool_names, works_alone

# What gloo, NCCL and the store say on the ranks that are left when one has gone.
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError")
_UNHEARD = 2.0  # seconds after which a rank says itself what rank 0 should have said


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; ends the process with the exit code that the README documents."""
    try:
        request = parse(sys.argv[1:] if argv is None else argv, tool_names())
        context = detect(os.environ, SINGLE.name if works_alone(request.tool) else request.launcher)
        refuse_misfit(context)
    except RunnerError as error:
        _say_once(error, may_speak(os.environ), "")
        sys.exit(error.exit_code)
    if warning := idle_tasks(context):
        print(f"runner: {warning}", file=sys.stderr, flush=True)
    words = Words(
        label=context.label,
        no_meeting=lambda code: _why_no_meeting(context, request, code),
        speaks=context.rank.value == 0,
        # Open MPI 5's mpirun (PRRTE) drops what its ranks say once it has been told to end.
        is_heard_to_the_end="PRTE_LAUNCHED" not in context.environment,
        to_go_on="go on from its last checkpoint with --resume" if request.may_be_workload else "",
    )
    lifeline = start_worker(words, request.timeout + 10, lambda: launcher_of(context))
    _work(request, context, lifeline)


def _work(request: Request, context: LaunchContext, lifeline: Lifeline) -> NoReturn:
    """Everything that happens in the worker."""
    for stream in (sys.stdout, sys.stderr):
        # A launcher's pipe would hold lines back until the end; unbuffered (torchrun starts ranks so) would cut them
        # in two writes, and lines of several ranks would run into one another.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, write_through=False)
    allow_open_files()
    worker, in_order, in_time = os.getpid(), False, True
    job: Job | None = None
    try:
        target, job = _prepare(request, context, lifeline)
        dispatch(target, request.arguments, job)
        code = EXIT_OK
    except SystemExit as leaving:
        code = _exit_code_of(leaving)
        if code != EXIT_OK and context.size.value > 1:
            print(f"runner: {context.label} ended with code {code}", file=sys.stderr, flush=True)
        in_time = False  # on purpose: the program's exit handlers may take what they need
    except KeyboardInterrupt:
        code = 130
    except RunnerError as error:
        code = error.exit_code
        in_order = error.told_by_all  # what all ranks refuse they can also leave together
        is_one_ranks = not error.told_by_all and context.size.value > 1
        _say_once(error, context.rank.value == 0, f"{context.label}: " if is_one_ranks else "")
    except BaseException as error:
        code = EXIT_FAILURE
        _tell_failure(error, context, job)
    if os.getpid() != worker:
        leave(code, in_order=False)  # a child that the program has forked: group and MPI are its parent's
    if code != EXIT_OK and in_time:
        lifeline.failed(code)  # from here on the guard bounds every wait
    leave(code, in_order=in_order or code == EXIT_OK, job=job if code == EXIT_OK else None)


def _prepare(request: Request, context: LaunchContext, lifeline: Lifeline) -> tuple[Target, Job]:
    problem = target = None
    try:
        target = find_target(request.target, as_module=request.as_module, tools=tool_names())
        refuse_idle_options(request, target.kind, target.name)
    except UsageError as error:
        problem = str(error)
    record = own_record(
        context,
        problem=problem,
        target=request.target,
        digest=target.digest if target else "",
        arguments=list(request.arguments),
        resources=as_record(resources(context.environment)),
    )
    is_examined = examines(request.tool)
    meeting = meet(context, record, way=request.rendezvous, timeout=request.timeout, examining=is_examined)
    topology = check(meeting.records, same_versions=not is_examined)
    lifeline.met()
    assert target is not None  # else check() has refused
    job = Job(
        context=context,
        topology=topology,
        endpoint=meeting.endpoint,
        meeting=meeting.why,
        mpi_refused=meeting.mpi_refused,
        placements=place(context, topology, request.device, refuse=not is_examined),
        device=request.device,
        replaced_backends=dict([request.replace_backend.split("=")]) if request.replace_backend else {},
        collective_timeout=request.collective_timeout or Job.collective_timeout,
        timeout_is_asked_for=request.collective_timeout is not None,
    )
    job = with_backend(job, request.backend or "auto")
    if target.kind == "workload" or shows_training(request.tool):
        job = with_spare_cores(job)
    if job.placement.warning and job.local_rank == 0 and target.kind != "tool":
        print(f"runner: {context.host}: {job.placement.warning}", file=sys.stderr)
    return target, job


def place(context: LaunchContext, topology: Topology, device: str, *, refuse: bool) -> tuple[Placement, ...]:
    """Every rank's placement. Ranks with the same one share it."""
    kinds, index = topology.records.of_field("resources")
    numbers = index or [0] * topology.size
    hosts = [(host.name, [numbers[rank] for rank in host.ranks]) for host in topology.hosts]
    placed = place_all(context.launcher, hosts, [Resources(**kind) for kind in kinds], device, refuse=refuse)
    by_rank = {
        rank: placement
        for host, placements in zip(topology.hosts, placed, strict=True)
        for rank, placement in zip(host.ranks, placements, strict=True)
    }
    return tuple(by_rank[rank] for rank in range(topology.size))


def _say_once(error: RunnerError, first: bool, label: str) -> None:
    """Print one line. Where all ranks know it rank 0 says it; the others step in if the job goes on without it."""
    if not first:
        # Whoever ends first has the launcher end the others, so rank 0 is given time to speak. MPI's end waits for it.
        if not (error.told_by_all and "mpi4py.MPI" in sys.modules):
            time.sleep(_UNHEARD)
        if error.told_by_all:
            return
    print(f"runner: {label}{error}", file=sys.stderr, flush=True)


def _exit_code_of(leaving: SystemExit) -> int:
    """What Python makes of ``sys.exit``'s argument."""
    if leaving.code is None:
        return EXIT_OK
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return EXIT_FAILURE


def _tell_failure(error: BaseException, context: LaunchContext, job: Job | None) -> None:
    """One line that names rank, host and cause, then the program's own part of the traceback."""
    cause = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    own = _skip_runner(error.__traceback__)
    if any(sign in str(error) for sign in _ECHOES):
        time.sleep(_UNHEARD)  # another rank has failed, and its own message should come first
        cause = _who_has_ended(job) + cause
    print(f"runner: {context.label} failed: {cause}", file=sys.stderr, flush=True)
    sys.excepthook(type(error), error.with_traceback(own), own)  # the program's own, where it has set one
    sys.stderr.flush()


def _who_has_ended(job: Job | None) -> str:
    ended = ended_ranks(job) if job is not None else []
    if job is None or not ended:
        return ""
    hosts = ", ".join(dict.fromkeys(job.topology.records[rank]["host"] for rank in ended))
    return (
        f"{ranks_text(ended)} on {hosts} had already ended (exit code 0) while this rank still worked; all ranks have to "
        "make the same collective calls (batches, epochs, barriers): "
    )


def _skip_runner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the runner's own way to the target."""
    way = {__file__, sys.modules[dispatch.__module__].__file__}
    start = trace
    while start is not None and (
        start.tb_frame.f_code.co_filename in way or "<frozen" in start.tb_frame.f_code.co_filename
    ):
        start = start.tb_next
    return start or trace


def _why_no_meeting(context: LaunchContext, request: Request, code: int | None) -> str:
    """What the guard says of a worker that was not in time, or that has ended with a code and no message of ours."""
    try:
        way, _ = choose_way(context, request.rendezvous)
    except RunnerError as error:
        return str(error)
    if code is not None:
        library = library_of_launcher() or "/path/of/your/mpirun's/lib/libmpi.so"
        hint = f"; MPI ended it, perhaps as it is not {context.launcher.title}'s: MPI4PY_LIBMPI={library}"
        return f"ended with code {code} before the ranks had met{hint if way == 'mpi' else ''}"
    reason = "a rank has not started, or cannot be reached"
    if way == "mpi":
        reason = f"MPI_Init or the first MPI collective did not end: {reason}"
    return (
        f"the {context.size.value} ranks did not meet within {request.timeout:.0f} s (by {way}); {reason}; "
        "allow more with --timeout"
    )
