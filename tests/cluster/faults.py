"""What happens when something goes wrong: each case under each launcher, on two hosts of the virtual cluster.

    python -m tests.cluster.faults [--launcher NAME …] [--case NUMBER …]      (make test-faults)

Writes the table of docs/reliability.md: seconds from the fault to the end, exit code, first line, and what is left. With
--launcher or --case it only prints. Exit code 1 if a case has not ended as it should.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1, Signals
from subprocess import CompletedProcess

import psutil

from tests.cluster.launchers import LAUNCHERS, Launch, _slurm_shape
from tests.cluster.virtual import Cluster, cluster
from tests.launching import ROOT, RUNNER, SCRIPTS

DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make test-faults -->", "<!-- end -->"
HANG = 3  # seconds, of --hang-timeout
_LEAVING = 3.0  # seconds that what was started gets to end, after the launcher has

NO_SIGNALS = ("torchrun", "srun-torchrun", "intelmpi")  # the last is a shell script, which ends (docs/signals.md)
SRUN = ("srun", "srun-pmi2")  # SIGTERM ends its step at once, and Ctrl-C has to come twice
REPLACE_CODES = ("intelmpi", "torchrun", "srun-torchrun")  # by one of their own, at least at times


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and how a job ends by it.

    Attributes:
        number: in the list of faults in docs/reliability.md.
        fault: of tests/scripts/faulty.py; "" if the launcher gets a signal.
        codes: the exit codes that are right; () for any but 0.
        says: a pattern of the first line that the runner prints.
        within: seconds from the fault to the end.
    """

    number: int
    title: str
    fault: str = ""
    to_launcher: Signals | None = None
    codes: tuple[int, ...] = ()
    says: str = ""
    within: float = 5.0
    options: Sequence[str] = ()
    not_under: Sequence[str] = ()
    only_under: Sequence[str] = ()


CASES = (
    Case(
        number=1, title="a rank raises an error", fault="raise", says=r"rank 1 of 2 on host \S+ failed: ValueError: odd"
    ),
    Case(number=2, title="a rank calls sys.exit(7)", fault="exit7", says=r"rank 1 of 2 on host \S+ ended with code 7"),
    Case(
        number=3,
        title="a rank calls sys.exit() while the others train",
        fault="exit0",
        says=r"rank 1 of 2 on host \S+ left early, by sys.exit\(\) after step 5",
    ),
    Case(
        number=3,
        title="a rank calls os._exit(0) while the others train",
        fault="leave",
        says=r"rank 1 of 2 on host \S+: left early, with exit code 0 after step \d",
    ),
    Case(number=4, title="a rank is killed", fault="SIGKILL", says=r"rank 1 of 2 on host \S+: killed by SIGKILL"),
    Case(number=5, title="a rank crashes in C", fault="SIGSEGV", says=r"rank 1 of 2 on host \S+: killed by SIGSEGV"),
    Case(
        number=6,
        title="a rank is stopped",
        fault="SIGSTOP",
        codes=(70,),
        says=r"(stopped by a signal \(SIGSTOP\) for \d+ s|no progress for \d+ s, after step \d): rank 1 in .*rank 0 waiting in",
        within=5.0 + 2 * HANG + 10,
    ),
    Case(
        number=7,
        title="a rank holds the GIL in C",
        fault="GIL",
        codes=(70,),
        says=r"no progress for 3 s, after step \d: rank 1 in hold_the_gil .*rank 0 waiting in",
        within=5.0 + 2 * HANG,
    ),
    Case(
        number=8,
        title="a rank sleeps while the others wait in a collective",
        fault="sleep",
        codes=(70,),
        says=r"no progress for 3 s, after step \d: rank 1 in .* \(faulty.py:\d+\); rank 0 waiting in",
        within=5.0 + 2 * HANG,
    ),
    Case(
        number=9,
        title="a rank makes another collective, by gloo",
        fault="skip",
        options=("--backend", "gloo"),
        says=r"rank \d of 2 on host \S+( failed|: killed by SIGABRT)",
    ),
    Case(
        number=10,
        title="SIGTERM to the launcher",
        to_launcher=SIGTERM,
        says=r"SIGTERM",
        within=10.0,
        not_under=(*NO_SIGNALS, *SRUN),
    ),
    Case(
        number=11,
        title="SIGUSR1 to the launcher",
        to_launcher=SIGUSR1,
        codes=(75,),
        says=r"SIGUSR1: saved \S+/step-\d+; go on with --resume",
        within=10.0,
        not_under=NO_SIGNALS,
    ),
    Case(number=12, title="SIGKILL to the launcher", to_launcher=SIGKILL, within=10.0, not_under=NO_SIGNALS),
    Case(
        number=14,
        title="a rank is killed, and srun does not end the others (--kill-on-bad-exit=0)",
        fault="SIGKILL",
        says=r"rank 1 of 2 on host \S+: killed by SIGKILL",
        only_under=("srun-kept",),
    ),
    Case(number=21, title="a rank's guard is killed", fault="guard", within=10.0),
    Case(
        number=25,
        title="a loss that is NaN on one rank, with --check-finite",
        fault="nan",
        options=("--check-finite",),
        codes=(1,),
        says=r"--check-finite: the loss is nan on rank 1",
    ),
    Case(
        number=26,
        title="a bit of a parameter flips on one rank, with --check-replicas",
        fault="bit",
        options=("--check-replicas", "2"),
        codes=(1,),
        says=r"--check-replicas: weight differs on ranks 0-1 \(\S+, \S+\) after step 6",
    ),
    Case(number=31, title="Ctrl-C", to_launcher=SIGINT, within=10.0, not_under=(*NO_SIGNALS, *SRUN)),
)


def srun_kept(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> CompletedProcess[str]:
    """srun that leaves the other ranks alone when one fails."""
    return vc.run("node1", ["srun", "--kill-on-bad-exit=0", *_slurm_shape(vc, slots), *program])


ALL: dict[str, Launch] = {name: launch for name, launch in LAUNCHERS.items() if not name.startswith("sbatch-")} | {
    "srun-kept": srun_kept
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """How a job has ended."""

    seconds: float
    code: int
    line: str  # the first that the runner printed
    left: Sequence[str]  # processes

    def problem(self, case: Case, launcher: str) -> str:
        """What is not as it should be; "" if all is."""
        if self.left:
            return f"left {len(self.left)} processes"
        if self.code == 0 or (case.codes and self.code not in case.codes and launcher not in REPLACE_CODES):
            return f"exit code {self.code}"
        if self.seconds > case.within:
            return f"{self.seconds:.1f} s"
        return "" if re.search(case.says, self.line) else "another first line"


def occurs(case: Case, launcher: str) -> bool:
    """Whether a case can occur under a launcher."""
    if case.only_under:
        return launcher in case.only_under
    return launcher not in case.not_under and launcher != "srun-kept"


class NotStartedError(Exception):
    """The job has ended before the fault."""


def try_case(vc: Cluster, case: Case, launcher: str, folder: Path) -> Found:
    """Let it happen. A start that fails is tried again: MPICH under Slurm's PMI-2 fails in MPI_Init once in some 25 starts."""
    problems = []
    for attempt in range(3):
        own = folder / str(attempt)
        own.mkdir()
        try:
            return _try_once(vc, case, launcher, own)
        except NotStartedError as error:
            problems.append(str(error))
    raise AssertionError(f"{launcher} has failed to start three times:\n" + "\n".join(problems))


def _try_once(vc: Cluster, case: Case, launcher: str, folder: Path) -> Found:
    stamp = folder / "stamp"
    program = [
        *RUNNER,
        "--hang-timeout",
        str(HANG),
        "faulty",
        "--fault",
        case.fault or "nothing",
        "--stamp",
        str(stamp),
    ]
    program += ["--checkpoint-dir", str(folder / "run"), "--save-every", "0", "--batch-size", "8", *case.options]
    hosts = replace(vc, environment=vc.environment | {"PYTHONPATH": f"{ROOT}:{SCRIPTS}"})
    ended: list[CompletedProcess[str] | float] = []

    def start() -> None:
        ended.extend([ALL[launcher](hosts, [1, 1], program), time.time()])

    thread = threading.Thread(target=start)
    thread.start()
    if case.to_launcher is not None:
        while not stamp.exists() and thread.is_alive():
            time.sleep(0.02)
        if stamp.exists():
            launcher_process(folder).send_signal(case.to_launcher)
        began = time.time()
    thread.join()
    done, end = ended
    assert isinstance(done, CompletedProcess)
    assert isinstance(end, float)
    if not stamp.exists():
        raise NotStartedError(done.stderr)
    if case.to_launcher is None:
        began = float(stamp.read_text())
    # Ranks whose launcher was killed get SIGTERM then, and SIGKILL 5 s later.
    left = left_of(folder, case.within if case.to_launcher is SIGKILL else _LEAVING)
    if case.to_launcher is SIGKILL:  # its ranks' end is what counts
        end = time.time()
    own = [line for line in done.stderr.splitlines() if line.startswith("runner: ")]
    return Found(
        seconds=end - began, code=done.returncode, line=next(iter(own), "").removeprefix("runner: "), left=left
    )


def left_of(folder: Path, within: float = _LEAVING) -> list[str]:
    """The command lines of the processes that name this folder and do not end by themselves in so many seconds."""
    deadline = time.monotonic() + within
    while (left := [*processes(folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(process.info["cmdline"]) for process in left]


def processes(folder: Path) -> Iterator[psutil.Process]:
    """Those whose command line names this folder."""
    for process in psutil.process_iter(["cmdline", "status"]):
        is_one = any(str(folder) in word for word in process.info["cmdline"] or ())
        if is_one and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process


def launcher_process(folder: Path) -> psutil.Process:
    """The launcher of the job that uses this folder: the first that was started."""
    return min(processes(folder), key=lambda process: (process.create_time(), process.pid))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", choices=ALL, nargs="+", default=[*ALL])
    parser.add_argument("--case", type=int, nargs="+", default=sorted({case.number for case in CASES}))
    given = parser.parse_args()
    is_whole = given.launcher == [*ALL] and len(given.case) == len({case.number for case in CASES})
    rows, problems = [], 0
    with cluster(2, slurm=True) as vc:
        for case in (case for case in CASES if case.number in given.case):
            for launcher in (name for name in given.launcher if occurs(case, name)):
                with tempfile.TemporaryDirectory() as folder:
                    found = try_case(vc, case, launcher, Path(folder))
                    problem = found.problem(case, launcher)
                    for process in processes(Path(folder)):
                        with suppress(psutil.Error):
                            process.kill()
                    line = re.sub(rf"{folder}\S*/", "…/", found.line)[:150].replace("|", "\\|")
                cells = [
                    case.number,
                    case.title,
                    launcher,
                    f"{found.seconds:.1f}",
                    found.code,
                    line,
                    problem or "as it should",
                ]
                rows.append("| " + " | ".join(map(str, cells)) + " |")
                print(rows[-1], flush=True)
                problems += bool(problem)
    if is_whole:
        head = "| case | | launcher | seconds | exit code | first line | |\n|---|---|---|---|---|---|---|\n"
        text = DOCUMENT.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{head}" + "\n".join(rows) + f"\n\n{END}{after}")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
