"""``runner.start()``: a script becomes a run that trains by every strategy, under any launcher or alone."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from runner.backends.process_group import start_process_group
from runner.backends.selection import with_spare_cores
from runner.base.early_signals import EARLY
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.job import held, hold
from runner.options.job_settings import JobSettings
from runner.parallel.mesh import lay_out
from runner.starting.attach import attach, report_errors
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.extras import OF_WORKLOADS, require
from runner.versions.features import RUNNER, need

_started = threading.Event()


def start(settings: Settings | None = None, *, device: str = "auto", backend: str = "auto") -> Run:
    """Join the job's other ranks. Call it once, near the script's beginning; torch's process group is made here. Collective.

    Under ``python -m runner script.py`` the ranks have met already. Started by mpirun, srun or torchrun without it, or as one
    process, they meet here: the script trains and saves alike, and one line says that it has no guard.

    Args:
        settings: how to train, and where to save: ``Settings(strategy="fsdp")``, or ``Settings.from_args()`` for what the command line
            says. Files go to ``runs/`` and the script's name, unless ``checkpoint_dir`` is given.
        device: ``auto``, ``cpu``, ``cuda`` or ``xpu``.
        backend: of the process group, as ``--backend``. Device and backend count only where ``python -m runner``, which has options
            for them, has not started the script.

    Raises:
        UsageError: it was called before, the script has made a process group, or the settings do not fit the number of ranks.
        LaunchError: the launch is one in which every rank would train alone.
        RendezvousError: the ranks could not meet.
    """
    job = held() or attach(JobSettings(device=device, backend=backend))
    _check_first()
    with raised_on_all_ranks():
        require(*OF_WORKLOADS)
        given, torch_version = settings or Settings(), job.topology.records[0].torch
        need(RUNNER, *given.features, version=torch_version, device=job.placement.device)
        layout = lay_out(job.topology, given.degrees(job.size))
        need(*given.features_in(layout), version=torch_version, device=job.placement.device)
        name = Path(sys.argv[0]).stem or "script"
        found = given.in_folder(name).for_ranks(layout.degrees.data)
    EARLY.listen()
    job = with_spare_cores(job)
    hold(job)

    import torch

    torch.set_num_threads(job.placement.threads)
    start_process_group(job)
    report_errors()
    return Run(job=job, workload=name, layout=layout, settings=found)


@raised_on_all_ranks()
def _check_first() -> None:
    if _started.is_set():
        raise UsageError(
            "runner.start() is called a second time", fix="call it once, and pass on the run that it returns"
        )
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        raise UsageError(
            "runner.start() finds a process group that the script has made",
            fix="leave out init_process_group(), which start() does",
        )
    _started.set()
