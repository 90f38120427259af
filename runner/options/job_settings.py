"""How a job runs: the runner's own options. They stand before the target, and for a workload also after its name."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGUSR1, Signals

from runner.backends.registry import process_groups
from runner.base.quantities import clock_text, not_negative, seconds, time_limit
from runner.base.settings import option
from runner.hardware.binding import AUTO, parse_binding
from runner.hardware.devices import DEVICES
from runner.launch.launchers import SINGLE, launchers
from runner.rendezvous.rendezvous import WAYS

HANG_TIMEOUT = 600.0  # seconds
STAGING_SECONDS = 1800.0  # for the copies of --stage


def _notice(text: str) -> Signals | Path:
    """How a script is told to save."""
    if text == "usr1":
        return SIGUSR1
    kind, _, name = text.partition("=")
    if kind != "touch" or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is neither usr1 nor touch=FILE")
    file = Path(name)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {file.parent} for {name}")
    if file.is_dir() or (file.exists() and file.stat().st_size):
        raise argparse.ArgumentTypeError(f"{name} is there, and not empty; name a file that the job may remove")
    return file


def _text_of_notice(notice: Signals | Path) -> str:
    return "usr1" if notice is SIGUSR1 else f"touch={notice}"


def _launcher_names() -> list[str]:
    return [*(row.name for row in launchers()), SINGLE.name]


_EQUAL = (
    "device",
    "backend",
    "bind",
    "restart_in_place",
    "hang_timeout",
    "collective_timeout",
    "time_limit",
    "time_to_save",
)

_usual = partial(option, group="runner")
_advanced = partial(option, group="runner", advanced=True)  # only the full help shows it


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """How a job runs."""

    device: str = _usual(
        "auto",
        "device of all ranks: auto takes GPUs if there are any, else the CPU; cuda also means AMD's GPUs",
        choices=DEVICES,
    )
    backend: str | None = _usual(
        None,
        "backend of a workload's process group: gloo, nccl, mpi4py (over the MPI that started the job), or mpi, if torch was built with it "
        "(default: auto, which is nccl on GPUs, xccl on Intel's; on CPUs mpi4py if it can be used, else gloo). For a script mpi4py "
        "only, which then serves one that says gloo or mpi, or names no backend",
        choices=lambda: ["auto", *process_groups()],
    )
    bind: str = _advanced(
        AUTO,
        "cores of each rank: auto gives ranks that the launcher left on the same cores a share of their own, if the job has these cores "
        "alone or they are fewer than the ranks; none keeps the launcher's; a list names them for each rank of a host: 0-3:4-7",
        parse=parse_binding,
        metavar="auto|none|LIST",
    )
    launcher: str | None = _advanced(
        None, "read rank and size from this launcher's variables, whatever others are set", choices=_launcher_names
    )
    rendezvous: str = _advanced(
        "auto",
        "how the ranks meet: env (MASTER_ADDR and MASTER_PORT), mpi, file (one host), hosts (a known list); auto takes the first that "
        "is possible",
        choices=WAYS,
    )
    timeout: float = _advanced(
        300.0, "end the job if not all ranks have met within this time", parse=seconds, metavar="SECONDS"
    )
    log_dir: Path | None = _usual(
        None,
        "write each rank's state (every two seconds) and output to this folder; view it live with `python -m runner top DIR`",
        metavar="DIR",
    )
    prefix_output: bool = _advanced(False, "begin each line with the rank that printed it: [3]")
    restart_in_place: int = _usual(
        0,
        "start all ranks again after a failure, up to N times, without the launcher and without MPI",
        parse=not_negative,
        shows=None,
    )
    share_import: str = _advanced(
        "auto",
        "import torch once per host and fork the ranks of that process: auto where a host has two or more ranks and nothing speaks "
        "against it; `explain` shows what is done, and why",
        choices=("auto", "on", "off"),
    )
    preload: tuple[str, ...] = _advanced(
        (), "import this module once per host, too, such as transformers; repeatable", metavar="MODULE"
    )
    stage: tuple[Path, ...] = _advanced(
        (),
        "copy this folder or file to each host's own disk before the ranks start, and let them read it there, at the same path; "
        "repeatable. `stage` sends it from host to host",
        metavar="PATH",
    )
    stage_to: Path | None = _advanced(
        None,
        "folder of the host's own disk for --stage (default: SLURM_TMPDIR, LOCAL_SCRATCH, PBS_JOBFS or TMPDIR, else /tmp)",
        metavar="DIR",
    )
    hang_timeout: float | None = _advanced(
        None,
        f"report a hang, and where each rank is, after this long without a training step (default: {HANG_TIMEOUT:.0f}), or, for a "
        "script, in one call of torch.distributed (default: no limit)",
        parse=seconds,
        metavar="SECONDS",
    )
    collective_timeout: float | None = _advanced(
        None,
        "end a collective that takes longer (default: 1800; in a script what its init_process_group says, or torch's own default)",
        parse=seconds,
        metavar="SECONDS",
    )
    time_limit: float | None = _usual(
        None,
        "save and end, with exit code 75, before the job has run for this long: minutes, H:M:S or D-H:M:S (default: as Slurm or TORQUE "
        "says); SIGTERM and SIGUSR1 do the same at once. A script needs --on-preempt",
        parse=time_limit,
        text=clock_text,
        metavar="TIME",
    )
    time_to_save: float | None = _advanced(
        None,
        "reserve this long before the time limit for a checkpoint (default: a minute, or a tenth of the time if that is less; a workload takes longer if "
        "its steps and checkpoints do); for a script also after SIGTERM (default: 30)",
        parse=seconds,
        metavar="SECONDS",
    )
    on_preempt: Signals | Path | None = _advanced(
        None,
        "how to tell a script to save, at SIGTERM, at SIGUSR1 and before the time limit: send it SIGUSR1, or create FILE",
        parse=_notice,
        text=_text_of_notice,
        metavar="usr1|touch=FILE",
    )
    # Set by `scale`.
    measure: Path | None = _usual(
        None, "time the steps that DIR/request.json says, and end", metavar="DIR", hidden=True
    )
    # Set by `supervise`: Open MPI's mpirun passes no environment variables on to other hosts, so this is an option.
    began: float | None = _usual(None, "the job's start in seconds since 1970", parse=float, hidden=True)

    def equal_on_all_ranks(self) -> list[str]:
        """Return the given options that must be equal on all ranks, as texts."""
        values = {name: getattr(self, name) for name in _EQUAL if getattr(self, name) != getattr(JobSettings, name)}
        return [f"--{name.replace('_', '-')} {value}" for name, value in values.items()]
