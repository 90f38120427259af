"""Run the target: a program as Python would run it, a workload's ``main``, or a tool."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from runner.backends.process_group import limit_when_imported, prepare_backends, start_process_group
from runner.backends.registry import backends
from runner.base.collector import freeze
from runner.base.environment import set_missing, set_variables
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.streams import as_python_has_them, ending_without_reader
from runner.job import Job, hold
from runner.launch.modules import import_workload
from runner.launch.program import put_first_on_path, put_program_on_path, run_program
from runner.launch.target import Target
from runner.options.command import Given, Request
from runner.parallel.mesh import lay_out
from runner.tools.registry import load_tool, tool_of
from runner.torchrun.alone import tell_if_alone, tell_if_alone_after_a_minute
from runner.torchrun.compile_caches import compile_once_per_host
from runner.torchrun.equal_batches import tell_of_equal_batches
from runner.torchrun.import_hooks import import_without_collector
from runner.torchrun.own_modules import find_first_workloads, hide_own_modules, keep_own_modules
from runner.torchrun.replacing import finalize_before_exec
from runner.torchrun.served_store import serve_own_endpoint_only
from runner.torchrun.store import serve_when_needed
from runner.torchrun.variables import accelerate_variables, settings, torchrun_variables
from runner.versions.features import need, number_of, untried
from runner.versions.torch_private import COMPILER


def dispatch(target: Target, request: Request, job: Job) -> None:
    """Run the target on this rank. Its exceptions pass through."""
    import_without_collector("torch", COMPILER, "torch.distributed.tensor", "torchvision")
    if target.kind != "tool" or tool_of(target.name).needs_rendezvous:  # else it starts jobs with settings of their own
        set_variables(settings(job))
        if job.topology.local_size(job.rank) > 1:
            compile_once_per_host()
    if job.measure is None:
        _run(target, request, job)
        return
    from runner.measuring.measured_run import measuring

    with measuring(job, job.measure):
        _run(target, request, job)


def _run(target: Target, request: Request, job: Job) -> None:
    if target.kind == "tool":
        _check_torch(job, target.name)
        with ending_without_reader():
            load_tool(target.name)(job, list(request.arguments))
    elif target.kind == "workload":
        put_first_on_path(os.getcwd())
        find_first_workloads()
        keep_own_modules()
        _run_workload(target.name, request.given, job)
    else:
        set_variables(torchrun_variables(job))
        set_missing(accelerate_variables(job))
        _check_backend(job)
        serve_when_needed(job)
        prepare_backends(job)
        limit_when_imported(job)
        serve_own_endpoint_only(job)
        tell_of_equal_batches(job)
        put_program_on_path(target)
        hide_own_modules()
        finalize_before_exec()
        as_python_has_them()
        hold(job)
        _run_and_report(target, request.arguments, job)


def _run_and_report(target: Target, arguments: Sequence[str], job: Job) -> None:
    """Run a program; if it was meant for one process, and so runs once per rank, one line reports so after a minute or at its end."""
    tell_if_alone_after_a_minute(job, target.name, target.source)
    try:
        run_program(target, arguments)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            tell_if_alone(job, target.name, target.source)
        raise
    tell_if_alone(job, target.name, target.source)


def _check_torch(job: Job, *features: str) -> None:
    """See that torch is new enough for these features. Rank 0 prints which of them nobody has tried on such GPUs."""
    version, device = job.topology.records[0].torch, job.placement.device
    need(*features, version=version, device=device)
    for feature in untried(*features, version=version, device=device) if job.rank == 0 else ():
        floor = number_of(feature.floor)
        print(
            f"runner: {feature.name}: not tried on GPUs with torch {version} (on CPUs it needs {floor})",
            file=sys.stderr,
        )


@raised_on_all_ranks()
def _check_backend(job: Job) -> None:
    if job.replaces_gloo and (reason := backends()[job.backend].unavailable_reason(job)):
        raise UsageError(f"--backend {job.backend}: {reason}")


def _run_workload(name: str, given: Given, job: Job) -> None:
    # Refused before torch is imported.
    options = given.parallel()
    _check_torch(job, name, *options.features)
    layout = lay_out(job.topology, options.degrees(job.size))
    _check_torch(job, *options.features_in(layout))
    main = getattr(import_workload(name), "main", None)
    if not callable(main):
        with raised_on_all_ranks():
            raise UsageError(f"module {name} has no main(run, argv), so it is no workload")
    from runner.training.run import Run
    from runner.training.workload import bound

    run = Run(job=job, workload=name, layout=layout)
    if job.measure is None:
        train = bound(main, run, given)
    else:
        from runner.measuring.measured_run import to_measure

        train = bound(main, run, given, partial(to_measure, folder=job.measure, data_size=layout.degrees.data))
    freeze()  # also what the workload has imported
    start_process_group(job)
    train()
