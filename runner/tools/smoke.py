"""``python -m runner smoke``: start real jobs here (explain, doctor, a few steps of mnist), and print the results in one table.

    python -m runner smoke                     this machine: 2 ranks, by mpirun
    salloc -N2 -n8 python -m runner smoke      an allocation of Slurm, PBS, LSF
    python -m runner smoke --hostfile hosts    hosts of a file: "node1 slots=4"

Do not start it by mpirun: the scripts of mpi_scripts/, which it runs, call mpirun or srun. Exit code 0, or 1 if a job failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.devices import DEVICES
from runner.errors import UsageError
from runner.job import Job
from runner.launch.processes import RANK_STARTERS, launcher_process
from runner.options import Parser
from runner.quantities import positive, seconds
from runner.resources import resources
from runner.tools.jobscript import FOLDER
from runner.tools.mpirun import find_mpirun
from runner.tools.table import Row, print_rows, show_progress

_ENDING = 5.0  # seconds that a launcher gets to end its ranks


@dataclass(frozen=True, kw_only=True)
class Way:
    """How jobs are started here: a script of mpi_scripts/, and its variables."""

    title: str
    script: str
    settings: dict[str, str]


def smoke(job: Job, argv: list[str]) -> None:
    """Run the jobs one after the other.

    Raises:
        UsageError: no mpirun is found, or a host in the file is unknown.
        SystemExit: with 1 if a job has failed.
    """
    options = _parser().parse_args(argv)
    if launcher_process(RANK_STARTERS) is not None:
        raise UsageError("smoke starts mpirun or srun itself", fix="start it without")
    way = _way(options)
    device = ["--device", options.device] if options.device != "auto" else []
    try:
        folder = tempfile.mkdtemp(prefix=".smoke-", dir=os.getcwd())  # all hosts should share this folder
    except OSError as error:
        raise UsageError(
            f"cannot write in {os.getcwd()}: {error.strerror}", fix="start in a folder that all hosts share"
        ) from None
    for number in (signal.SIGTERM, signal.SIGHUP):  # time limit or closed terminal: end the jobs, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    rows: list[Row] = []
    try:
        training = ["workloads.mnist", "--data", "digits", "--max-steps", "20", "--checkpoint-dir", folder]
        jobs: list[tuple[str, list[str], Callable[[str], tuple[str, str]]]] = [
            ("explain", ["explain", "--json"], _read_explain),
            ("doctor", ["doctor", "--json"], _read_doctor),
            ("mnist", training, _read_training),
        ]
        for name, target, read in jobs:
            if any(row.status == "fail" and row.name == "explain" for row in rows):
                rows.append(Row(name, "fail", "not started, as explain failed"))
                continue
            show_progress(f"{name} …")
            rows.append(_run(name, way, [*device, *target], read, options.limit))
        show_progress("")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps({"way": way.title, "jobs": [vars(row) for row in rows]}, indent=1))
    else:
        print_rows(rows, "job", way.title)
    if any(row.status == "fail" for row in rows):
        sys.exit(1)


def _parser() -> Parser:
    parser = Parser(prog="python -m runner smoke", description=__doc__)
    parser.add_argument("--hostfile", metavar="FILE", help="the hosts, one per line, each with slots=N or :N")
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="ranks on this machine, if it is the only host (default: 2, or 1 where there is one GPU)",
    )
    parser.add_argument("--device", choices=DEVICES, default="auto", help="what the jobs compute on")
    parser.add_argument(
        "--limit", type=seconds, default=120.0, metavar="SECONDS", help="kill a job that takes longer (default: 120)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def _way(options: argparse.Namespace) -> Way:
    """How to start jobs: on the hosts in a file, in the allocation of this process, or on this machine."""
    if options.hostfile:
        hosts = _read_hosts(Path(options.hostfile))
        settings = {
            "HOSTS": ",".join(f"{name}:{slots}" for name, slots in hosts.items()),
            "RANKS": str(sum(hosts.values())),
        }
        return _by_mpirun(f"hosts of {options.hostfile}: {settings['HOSTS']}", settings, "--hostfile")
    for variable, script, title in (
        ("SLURM_JOB_ID", "slurm_srun.sh", "Slurm job"),
        ("PBS_NODEFILE", "pbs_mpirun.sh", "PBS job, hosts of"),
        ("LSB_JOBID", "lsf_jsrun.sh", "LSF job"),
    ):
        if os.environ.get(variable):
            return Way(title=f"{title} {os.environ[variable]}", script=script, settings={})
    gpus = len(resources(os.environ).gpus) if options.device != "cpu" else 0
    ranks = options.ranks or min(2, gpus or 2)
    # HOSTS is set, even if empty: the user's variable of that name may mean something else.
    return _by_mpirun(f"this machine, ranks: {ranks}", {"RANKS": str(ranks), "HOSTS": ""}, "smoke")


def _by_mpirun(title: str, settings: dict[str, str], option: str) -> Way:
    path, mpi = find_mpirun(option)
    if not (FOLDER / f"{mpi}.sh").exists():
        raise UsageError(
            f"{option}: {path} is of {mpi}", fix="set MPIRUN to the mpirun of Open MPI, MPICH or Intel MPI"
        )
    if mpi == "intelmpi" and settings["HOSTS"]:
        hosts = dict(entry.rsplit(":", 1) for entry in settings["HOSTS"].split(","))
        if len(set(hosts.values())) > 1:
            raise UsageError(
                f"{option}: Intel MPI's script starts as many ranks on each host", fix="give all the same slots"
            )
        settings = settings | {"HOSTS": ",".join(hosts), "PER_HOST": next(iter(hosts.values()))}
    return Way(title=f"{title}; {path}", script=f"{mpi}.sh", settings=settings | {"MPIRUN": path})


def _read_hosts(path: Path) -> dict[str, int]:
    """Hosts and their slots from a host file of Open MPI (``node1 slots=4``), MPICH (``node1:4``), or plain names."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    hosts: dict[str, int] = {}
    for line in filter(None, lines):
        match = re.fullmatch(r"([^\s:]+)(?:(?:\s+slots\s*=\s*|:)(\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?", line)
        if match is None:
            raise UsageError(f"--hostfile {path}: {line!r} is not a host", fix="for example: node1 slots=4")
        if match[2] and int(match[2]) == 0:
            raise UsageError(f"--hostfile {path}: {line!r} has no slot", fix="leave the host out")
        hosts[match[1]] = hosts.get(match[1], 0) + int(match[2] or 1)
    unknown = [name for name in hosts if not _resolves(name)]
    if not hosts or unknown:
        raise UsageError(
            f"--hostfile {path}: {', '.join(unknown)} does not resolve here; correct the name, or list it in /etc/hosts"
            if unknown
            else f"--hostfile {path} lists no host"
        )
    return hosts


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def _run(name: str, way: Way, target: list[str], read: Callable[[str], tuple[str, str]], limit: float) -> Row:
    """Start a job, wait for its end, and read what it printed."""
    start = time.monotonic()
    process = subprocess.Popen(
        [str(FOLDER / way.script), *target],
        env=os.environ | {"PYTHON": sys.executable} | way.settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that the launcher and its processes here can be ended together
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _, errors = _end(process)
        return Row(name, "fail", f"not done after {limit:g} s; {_cause(errors)}", time.monotonic() - start)
    except BaseException:
        _end(process)
        raise
    try:
        status, detail = read(output)
    except (ValueError, LookupError):
        status, detail = "fail", f"exit code {process.returncode}: {_cause(errors)}"
    if process.returncode != 0 and status != "fail":
        status, detail = "fail", f"exit code {process.returncode}: {_cause(errors)}"
    return Row(name, status, detail, time.monotonic() - start)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a launcher: SIGTERM, on which it ends its ranks, then SIGKILL to what is left. Returns its output."""
    import psutil

    started = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)  # Hydra's ssh has a process group of its own
    output = "", ""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            output = process.communicate(timeout=_ENDING)
            break
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.kill()  # psutil checks that it is still the same process
    return output


def _cause(errors: str) -> str:
    """The most useful line of a launcher's or rank's messages: the runner's, or else the first with words in it."""
    lines = [line.strip() for line in errors.splitlines() if re.search(r"\w{3}", line)]
    return next((line for line in lines if line.startswith("runner:")), lines[0] if lines else "no message")


def _read_explain(output: str) -> tuple[str, str]:
    found: dict[str, Any] = json.loads(output[output.index("{") :])
    hosts = ", ".join(f"{len(host['ranks'])} on {host['name']}" for host in found["hosts"])
    endpoint = found["endpoint"]
    device = found["ranks"][0]["device"]
    text = f"{found['launcher']['title']}: {found['size']} ranks, {hosts}; they met by {found['rendezvous']['way']} at "
    return "ok", f"{text}{endpoint['host']}:{endpoint['port']} on {endpoint['interface'] or 'no interface'}; {device}"


def _read_doctor(output: str) -> tuple[str, str]:
    checks = json.loads(output[output.index("{") :])["checks"]
    notable = [check for check in checks if check["status"] != "ok"]
    statuses = {check["status"] for check in checks}
    status = "fail" if "fail" in statuses else "warn" if "warn" in statuses else "ok"
    lines = [f"{len(checks) - len(notable)} of {len(checks)} checks are ok"]
    lines += [f"{check['status']}: {check['name']}: {check['detail']}\n→ {check['fix']}" for check in notable]
    return status, "\n".join(lines)


def _read_training(output: str) -> tuple[str, str]:
    (summary,) = [line for line in output.splitlines() if line.startswith("done: ")]
    return "ok", summary.removeprefix("done: ")
