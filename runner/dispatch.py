"""Run the target: a script or module as Python would run it, a workload's ``main``, or a tool."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Sequence

from runner.collector import freeze, freeze_before_program
from runner.comm.importing import import_without_collector, when_imported
from runner.comm.process_group import limit_when_imported, prepare_backends, start_process_group
from runner.comm.served_store import serve_own_endpoint_only
from runner.comm.standby import wait_until_needed
from runner.comm.store import serve_store
from runner.comm.table import backends
from runner.comm.variables import settings, torchrun_variables
from runner.environment import set_variables
from runner.errors import UsageError, raised_on_all_ranks
from runner.job import Job
from runner.parallel.mesh import lay_out
from runner.parallel.options import degrees_in
from runner.target import Target
from runner.tools import load_tool, works_alone


def dispatch(target: Target, arguments: Sequence[str], job: Job) -> None:
    """Run the target on this rank. Its exceptions pass through."""
    import_without_collector("torch", "torch._dynamo", "torch.distributed.tensor", "torchvision")
    when_imported("torch", freeze_before_program)
    if not (
        target.kind == "tool" and works_alone(target.name)
    ):  # such a tool starts jobs that get threads and interfaces of their own
        set_variables(settings(job))
        if (
            job.context.attempt and "torch" in sys.modules
        ):  # a spare process has imported it before the variables were set
            sys.modules["torch"].set_num_threads(job.placement.threads)
    if job.is_standby:
        wait_until_needed(job)
    if target.kind == "tool":
        load_tool(target.name)(job, list(arguments))
    elif target.kind == "workload":
        _put_first_on_path(os.getcwd())
        _run_workload(target.name, arguments, job)
    else:
        set_variables(torchrun_variables(job))
        _check_backend(job)
        serve_store(job)
        prepare_backends(job)
        limit_when_imported(job)
        serve_own_endpoint_only(job)
        if target.kind == "script":
            _run_script(str(target.path), arguments)
        else:
            _run_module(target.name, arguments)


@raised_on_all_ranks()
def _check_backend(job: Job) -> None:
    if job.replaces_gloo and (reason := backends()[job.backend].unavailable_reason(job)):
        raise UsageError(f"--backend {job.backend}: {reason}")


def _run_workload(name: str, arguments: Sequence[str], job: Job) -> None:
    layout = lay_out(job.topology, degrees_in(arguments, job.size))  # refuses before torch is imported
    main = getattr(importlib.import_module(name), "main", None)
    if not callable(main):
        with raised_on_all_ranks():
            raise UsageError(f"module {name} has no main(run, argv), so it is no workload")
    from runner.training.run import Run

    freeze()  # also what the workload has imported
    start_process_group(job)
    main(Run(job=job, workload=name, layout=layout), list(arguments))


def _run_script(path: str, arguments: Sequence[str]) -> None:
    """What ``python PATH ARGUMENTS`` does, in this process."""
    sys.argv = [path, *arguments]
    _put_first_on_path(os.path.dirname(os.path.realpath(path)))
    with open(path, "rb") as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)  # not this file's own __future__ imports
    main = _new_main()
    main.__dict__.update(__file__=os.path.abspath(path), __cached__=None, __package__=None, __spec__=None)
    exec(code, main.__dict__)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    """What ``python -m NAME ARGUMENTS`` does, in this process."""
    _put_first_on_path(os.getcwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"no code for module {name}")
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # all loaders of source have it
    sys.argv = [spec.origin, *arguments]
    main = _new_main()
    main.__dict__.update(
        __file__=spec.origin, __cached__=spec.cached, __package__=spec.parent, __spec__=spec, __loader__=spec.loader
    )
    exec(code, main.__dict__)


def _new_main() -> types.ModuleType:
    """A fresh ``__main__``, so that pickling and spawned children find the program's names and not the runner's."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main


def _put_first_on_path(folder: str) -> None:
    """Put a folder first on ``sys.path``, as Python does with the script's or working folder (unless run with ``-P``)."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
