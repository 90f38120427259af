"""What happens when something goes wrong: each case under each launcher, on two hosts of the virtual cluster.

    python -m tests.campaigns.faults [--launcher NAME …] [--case NUMBER …] [--write]      (make test-faults)

Writes docs/results/faults.md (seconds from the fault to the end, exit code, first line) and the list of docs/run/failures.md. With
--launcher or --case it only prints, or with --write puts what it found in the place of the page's. Exit code 1 if a case has not
ended as expected.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

import psutil

from tests.campaigns.faults.cases import CASES, Case, occurs
from tests.campaigns.faults.page import Ended, Faults, page, read, summary
from tests.campaigns.faults.scene import ALL, REPLACE_CODES, Scene
from tests.cluster.virtual import Cluster, cluster
from tests.launching import own_lines
from tests.pages import DOCS, RESULTS, put
from tests.processes import LEAVING, left_of, processes

PAGE = RESULTS / "faults.md"


@dataclass(frozen=True, kw_only=True)
class Found:
    """How a job has ended."""

    seconds: float
    code: int
    line: str  # the first that the runner printed, or else the program's that the case is about
    text: str  # all that was printed
    left: Sequence[str]  # processes
    problem_after: str

    def problem(self, case: Case, launcher: str) -> str:
        """What is not as it should be, whatever time it took; "" if all is."""
        if self.left:
            return f"left {len(self.left)} processes"
        if not self._is_right(case, launcher):
            return f"exit code {self.code}"
        if self.problem_after:
            return self.problem_after
        if not re.search(case.says, self.line):
            return "another first line"
        return "" if re.search(case.shows, self.text, re.MULTILINE | re.DOTALL) else f"no {case.shows}"

    def _is_right(self, case: Case, launcher: str) -> bool:
        if self.code == 0 or not case.codes:
            return (self.code == 0) == (0 in case.codes)
        return self.code in case.codes or (launcher in REPLACE_CODES and 0 not in case.codes)


class NotStartedError(Exception):
    """The job has ended before the fault."""


def try_case(vc: Cluster, case: Case, launcher: str, folder: Path) -> Found:
    """Let it happen. MPICH under Slurm's PMI-2 fails in MPI_Init once in some 25 starts; it may start three times."""
    problems = []
    for attempt in range(3 if launcher == "srun-pmi2" else 1):
        scene = Scene(vc=vc, launcher=launcher, folder=folder / f"{folder.name}-{attempt}")
        scene.folder.mkdir()
        try:
            return _try_once(case, scene)
        except NotStartedError as error:
            problems.append(str(error))
    raise AssertionError(f"{launcher} has failed to start:\n" + "\n".join(problems))


def _try_once(case: Case, scene: Scene) -> Found:
    try:
        case.before(scene)
    except AssertionError as error:
        raise NotStartedError(str(error)) from None
    with ExitStack() as stack:
        stack.callback(case.undo, scene)
        done, began, end = _run(case, scene)
        if case.is_at_a_step and not scene.stamp.exists():
            raise NotStartedError(done.stderr)
        # Ranks whose launcher was killed get SIGTERM then, and SIGKILL 5 s later; their end is what counts.
        left = left_of(scene.folder, case.within if case.kills_launcher else LEAVING)
        if case.kills_launcher:
            end = time.time()
        lines = [line.removeprefix("runner: ") for line in own_lines(done)]
        lines += [line for line in done.stdout.splitlines() if case.says and re.search(case.says, line)]
        if not case.is_at_a_step and done.returncode and not lines:
            raise NotStartedError(done.stderr)
        return Found(
            seconds=end - began,
            code=done.returncode,
            line=next(iter(lines), ""),
            text=done.stdout + done.stderr,
            left=left,
            problem_after=case.after(scene),
        )


def _run(case: Case, scene: Scene) -> tuple[CompletedProcess[str], float, float]:
    """How the job ended, when the fault was (or the start), and when the end."""

    def job() -> tuple[CompletedProcess[str], float]:
        if case.instead is not None:
            return case.instead(scene), time.time()
        fault = ["--fault", case.fault] if case.fault else []
        return scene.job(*fault, *case.options, slots=case.slots, shell=case.shell), time.time()

    began = time.time()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)
        if case.strike is not None:
            while not scene.stamp.exists() and not running.done():
                time.sleep(0.02)
            began = time.time()
            if scene.stamp.exists():
                case.strike(scene)
        done, end = running.result()
    if case.strike is None and scene.stamp.exists() and case.fault:
        began = float(scene.stamp.read_text())
    return done, began, end


def _ended(case: Case, launcher: str, vc: Cluster) -> Ended:
    """How a case ends under a launcher."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = try_case(vc, case, launcher, Path(folder))
            ended = Ended(
                seconds=f"{found.seconds:.1f}",
                code=str(found.code),
                line=re.sub(rf"{folder}\S*/", "…/", found.line)[:250].strip(),
                problem=found.problem(case, launcher)
                or ("" if found.seconds <= case.within else f"not within {case.within:g} s"),
            )
        except (AssertionError, OSError, TimeoutExpired) as error:
            ended = Ended(seconds="", code="-1", line="", problem=" ".join(str(error).split())[-300:])
        for process in processes(Path(folder)):
            with suppress(psutil.Error):
                process.kill()
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", choices=ALL, nargs="+", default=[*ALL])
    parser.add_argument("--case", type=int, nargs="+", default=sorted({case.number for case in CASES}))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    is_whole = given.launcher == [*ALL] and len(given.case) == len({case.number for case in CASES})
    found: Faults = {}
    with cluster(2, slurm=True) as vc:
        for case in (case for case in CASES if case.number in given.case):
            for launcher in (name for name in given.launcher if occurs(case, name)):
                ended = _ended(case, launcher, vc)
                cells = case.number, case.title, launcher, ended.seconds, ended.code, ended.line
                print(*cells, ended.problem or "as expected", sep=" | ", flush=True)
                found.setdefault((str(case.number), case.title), {})[launcher] = ended
    if is_whole or given.write:
        found = _merged({} if is_whole else read(PAGE.read_text()), found)
        PAGE.write_text(page(found, ALL))
        put(DOCS / "run/failures.md", "make test-faults", summary(found))
    sys.exit(any(one.problem for ends in found.values() for one in ends.values()))


def _merged(old: Faults, new: Faults) -> Faults:
    """Of all cases and launchers that there are, in order, what is new, and of the others the old."""
    found: Faults = {}
    for case in CASES:
        key = str(case.number), case.title
        ends = old.get(key, {}) | new.get(key, {})
        if kept := {name: ends[name] for name in ALL if name in ends and occurs(case, name)}:
            found[key] = kept
    return found


if __name__ == "__main__":
    main()
