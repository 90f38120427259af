"""A launch on a host: what its agent is for, and the steps of a worker from its environment to the target."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import NoReturn

from runner.backends.flight_recorder import answer_when_asked
from runner.backends.selection import with_spare_cores
from runner.base.early_signals import EARLY
from runner.base.errors import Policy, RunnerError, UsageError
from runner.base.streams import replace_characters
from runner.base.temporary import SHORTER, no_room_for_sockets
from runner.guard.process.lifeline import Computes, Lifeline, Met, Seeks
from runner.guard.report.console import print_text
from runner.guard.settings import Origin, Watched, Words
from runner.hardware.binding import AUTO, NONE, bind_process
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.detect import detect, is_reporting
from runner.launch.launcher_processes import stand_for
from runner.launch.launchers import SINGLE
from runner.launch.mislaunch import idle_tasks, refuse_mislaunch
from runner.launch.program import put_program_on_path
from runner.launch.target import EXECUTABLE, WORKLOAD, Target
from runner.options.command import Request, parse, refuse_idle_options
from runner.options.job_settings import STAGING_SECONDS
from runner.options.run_file import leave_run_file
from runner.rendezvous.records.compatibility import compare_ranks
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.rendezvous import RendezvousMethod, choose_way, rendezvous
from runner.rendezvous.transport.endpoint import allow_open_files
from runner.starting.dispatch import dispatch
from runner.starting.ending import SUCCESS, end_worker, outcome_of, refusing
from runner.starting.guarding import guard_watched, guard_words, guards_address
from runner.starting.join import job_of, place, record_of
from runner.starting.sharing import found_target, source_of, why_not_for_target, why_not_here
from runner.tools.registry import summaries, tool_of
from runner.torchrun.import_hooks import AHEAD
from runner.torchrun.shared_import import draw_own_numbers, import_once
from runner.versions.extras import OF_WORKLOADS, require
from runner.versions.features import FEATURES, RUNNER, need

# What a program names that needs torch's compiler: its import takes as long as the rest of torch's.
_COMPILES = re.compile(
    rb"DistributedDataParallel|DDP|FSDP|fully_shard|torch\.compile|lightning|accelerate|deepspeed|transformers"
)
# What each worker imports before it has met the others.
_SMALL = ("psutil", "pynvml", "encodings.idna")


class Launch:
    """The launch that the ranks of a host have in common, known to its agent and to their workers."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Read the command line; what is wrong with it is told each rank."""
        self._problem: RunnerError | SystemExit | None = None
        self._stage_problem: UsageError | None = None
        self._help = io.StringIO()
        try:
            replace_characters()
            require("psutil")
            with contextlib.redirect_stdout(self._help):
                self._request = parse(argv, summaries())
            self._why_not_here = why_not_here(self._request.job, os.environ)
            # Why each rank imports torch by itself; "": it does not.
            self._per_rank = self._why_not_here or why_not_for_target(self._request, lambda: self._target)
        except (RunnerError, SystemExit) as problem:
            self._problem = problem

    @property
    def is_refused(self) -> bool:
        """Whether no process of this launch can become a rank."""
        return self._problem is not None

    @property
    def shares(self) -> bool:
        """Whether the ranks of this host share an import of torch."""
        return self._problem is None and not self._per_rank

    def rank(self, origin: Origin) -> tuple[Words, Watched]:
        """Return the texts that a rank's guard prints, and what it watches.

        Raises:
            Refused: the launch is wrong.
        """
        with refusing(origin.environment):
            if self._problem is not None and is_reporting(origin.environment):
                print_text(self._help.getvalue(), origin.descriptors.get(1))
            if self._problem is not None:
                raise self._problem
            asked, tool = self._request.job, tool_of(self._request.tool)
            launcher = asked.launcher if tool.needs_rendezvous else SINGLE.name
            context = replace(detect(origin.environment, launcher), process=origin.process)
            way = choose_way(context, asked.rendezvous, restarts=asked.restart_in_place > 0)
            refuse_mislaunch(context)
        # The worker has the same variables, so that it needs no others than its own.
        found = pickle.dumps((replace(context, environment={}), way))
        return guard_words(context, self._request, way), guard_watched(context, self._request, origin.parent, found)

    def prepare(self) -> str:
        """Import what workers need, in the importer. Returns why they must not be forked of it."""
        if self._request.may_be_workload:
            EARLY.listen()  # before the fork, so that a worker has no moment without it
        if self._request.job.stage and tool_of(self._request.tool).needs_rendezvous:
            self._stage()
        for module in _SMALL:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        if self._per_rank:
            return ""
        modules: Sequence[str] = AHEAD
        if isinstance(self._target, Target) and self._target.is_program:
            put_program_on_path(self._target)
            modules = AHEAD if _COMPILES.search(source_of(self._target)) else AHEAD[:1]
        return import_once(modules, self._request.job.preload)

    def _stage(self) -> None:
        """Have the ranks of this host read from copies on its disk. They tell the others what is wrong with that."""
        from runner.staging.staged import StagedCopies

        job = self._request.job
        try:
            staged = StagedCopies(job.stage, job.stage_to, os.environ)
        except UsageError as problem:
            self._stage_problem = problem
        except OSError as error:
            self._stage_problem = UsageError(f"--stage: {error.filename or ''}: {error.strerror}")
        else:
            for line in staged.said:
                print(f"runner: {socket.gethostname()}: {line}", file=sys.stderr)

    def end(self) -> None:
        """Remove what was staged for this launch only, or only in part. Called in the agent, after all other processes' end."""
        if self.is_refused or not (self._request.job.stage or self._request.tool == "stage"):
            return
        from runner.staging.staged import remove_unused
        from runner.tools.stage.stage import parse_request

        with contextlib.suppress(UsageError, OSError, SystemExit):
            asked = self._request
            remove_unused(asked.job.stage_to if asked.job.stage else parse_request(asked.arguments).to, os.environ)

    def import_per_rank(self, why: str) -> None:
        """Each rank imports torch by itself."""
        self._per_rank = why

    def work(self, lifeline: Lifeline) -> NoReturn:
        """Be a rank's worker."""
        stand_for(lifeline.origin)
        draw_own_numbers()
        context, way = pickle.loads(lifeline.found)  # noqa: S301  # of this launch's own agent
        context = replace(context, environment=MappingProxyType(dict(os.environ)), attempt=lifeline.attempt)
        if warning := idle_tasks(context):
            print(f"runner: {warning}", file=sys.stderr, flush=True)
        job: Job | None = None
        try:
            _prepare_process()
            target, job = self._join(context, way, lifeline)
            _warn(job, target, self._request)
            if target.kind != "tool":
                leave_run_file(job, [job.log_folder])
            dispatch(target, self._request, job)
            outcome = SUCCESS
        except BaseException as error:
            outcome = outcome_of(error, context, job)
        end_worker(outcome, lifeline, job)

    def _join(self, context: LaunchContext, way: RendezvousMethod, lifeline: Lifeline) -> tuple[Target, Job]:
        """Meet the other ranks. Returns the target and this rank's view of the job."""
        request, asked, tool = self._request, self._request.job, tool_of(self._request.tool)
        policy = Policy.DIAGNOSTIC if tool.examines else Policy.STRICT
        target, record = described(request, self._stage_problem or self._target, context, lifeline.port)
        lifeline.tell(Seeks())
        timeout = asked.timeout + (STAGING_SECONDS if asked.stage else 0)
        result = rendezvous(context, record, way=way, timeout=timeout, policy=policy, keeps_socket=tool.has_channel)
        topology = compare_ranks(result.records, policy)
        lifeline.tell(Met(guards_address(context, result)))
        # A tool that works alone may be started anywhere, also where a job's GPUs are not.
        device = asked.device if tool.needs_rendezvous else "cpu"
        placements = place(context, topology, device, policy, asked.bind)
        own = placements[context.rank.value]
        if own.bound and (problem := bind_process(own.bound)):
            if asked.bind != AUTO:
                raise UsageError(problem, fix="say --bind none")
            print(f"runner: {problem}", file=sys.stderr)
        if own.device_index is not None:
            lifeline.tell(Computes(record.resources["gpus"][own.device_index]))
        if context.size.value > 1:
            answer_when_asked(lifeline, own.torch_device)
        assert target is not None  # otherwise compare_ranks() has refused the records
        job = job_of(asked, context, result, topology, placements, lifeline.board)
        replaces_gloo = target.runs_in_python and asked.backend is not None
        job = replace(job, replaces_gloo=replaces_gloo, imports_why=self._why_not_here)
        return target, with_spare_cores(job) if target.kind == WORKLOAD or tool.shows_training else job

    @cached_property
    def _target(self) -> Target | UsageError:
        """The target, or the reason why it cannot be run. The agent reads it for all ranks that share an import."""
        return found_target(self._request)


def _prepare_process() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Block buffering, the default for a launcher's pipe, holds lines back until the end. Without buffering (as
        # torchrun starts ranks) a line takes two writes, and the lines of several ranks mix.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, write_through=False)
    allow_open_files()


def described(
    request: Request, found: Target | UsageError, context: LaunchContext, guard_port: int
) -> tuple[Target | None, RankRecord]:
    """Return the target (None if it is not found), and this rank's record, which holds the problem if there is one."""
    target, problem = (found, None) if isinstance(found, Target) else (None, found)
    try:
        if target is not None:
            _check(request, target)
    except UsageError as error:
        problem = error
    record = record_of(
        context,
        request.target,
        target.digest if target else "",
        list(request.arguments),
        problem=problem,
        asks_for_gpus=request.job.device != "cpu" or tool_of(request.tool).examines,
        options=request.job.equal_on_all_ranks(),
        guard_port=guard_port,
        binding=request.job.bind if tool_of(request.tool).needs_rendezvous else NONE,
    )
    return target, record


def _check(request: Request, target: Target) -> None:
    """Raise UsageError if this target cannot be run with these options and packages."""
    refuse_idle_options(request, target)
    tool = tool_of(request.tool)
    idle = {"--bind": request.job.bind != AUTO, "--stage": bool(request.job.stage)}
    if not tool.needs_rendezvous and (given := [option for option, is_given in idle.items() if is_given]):
        raise UsageError(
            f"{given[0]} has no effect on {target.name} itself", fix="give it to the runner in the command of the job"
        )
    if target.kind != EXECUTABLE and tool.needs_rendezvous and not (tool.examines or tool.shows_training):
        need(RUNNER)
    if target.kind == WORKLOAD:
        require(*OF_WORKLOADS)


def _warn(job: Job, target: Target, request: Request) -> None:
    """Print what will not work for a program or a workload on this host; and once what will not on any."""
    if target.kind == "tool" or job.local_rank != 0:
        return
    warnings = [job.placement.warning, job.placement.gpu_warning]
    if job.size > 1 and target.is_program and (absent := job.topology.records[job.rank].absent_interfaces):
        warnings.append(f"GLOO_SOCKET_IFNAME names {', '.join(absent)}, which is not here, so gloo will fail")
    if target.is_program and (problem := no_room_for_sockets()):
        warnings.append(f"{problem}; {SHORTER}")
    for warning in filter(None, warnings):
        print(f"runner: {job.context.host}: {warning}", file=sys.stderr)
    feature = FEATURES["recorder"]
    is_asked = request.job.hang_timeout and target.is_program and job.size > 1 and job.rank == 0
    if is_asked and (lack := feature.shortfall(job.topology.records[0].torch)):
        print(f"runner: {feature.name}: it {lack}", file=sys.stderr)
