"""The faults of docs/run/failures.md: how each is brought about, and how a job ends by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from subprocess import CompletedProcess

from tests.campaigns.faults.scene import (
    HANG,
    LITTLE_MEMORY,
    MEMORY,
    PORT,
    SRUN,
    TORCHRUN,
    WEIGHTS,
    Scene,
    block_port,
    clear_group,
    cut_off,
    cut_short,
    damage,
    flip_a_byte,
    goes_on,
    open_port,
    requeued,
    requeued_by_slurm,
    save_by_four,
    signal,
    small_disk,
    two_at_once,
    verified,
)
from tests.cluster.job_scripts import BY_LAUNCHER


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and how a job ends by it.

    Attributes:
        number: in the list of docs/run/failures.md.
        fault: of tests/programs/failures/faulty.py.
        before: what is done before the job starts.
        shell: bash, run by each rank before it starts.
        strike: what is done at the job's fifth step.
        instead: what runs in the place of one job, and has its result.
        undo: what is done when the job has ended, or has not started.
        after: what is wrong when the job has ended; "" for nothing.
        codes: the exit codes that are right; () for any but 0.
        says: a pattern of the first line that the runner prints, or of a line that the program prints.
        shows: a pattern of all that is printed.
        kills_launcher: what counts is the ranks' end.
        within: seconds from the fault to the end; if the start is the fault, from there.
        elsewhere: what else has it, if it is not in test_faults.py.
    """

    number: int
    title: str
    fault: str = ""
    before: Callable[[Scene], object] = lambda scene: None
    shell: str = ""
    strike: Callable[[Scene], object] | None = None
    instead: Callable[[Scene], CompletedProcess[str]] | None = None
    undo: Callable[[Scene], object] = lambda scene: None
    after: Callable[[Scene], str] = lambda scene: ""
    codes: tuple[int, ...] = ()
    says: str = ""
    shows: str = ""
    kills_launcher: bool = False
    within: float = 5.0
    slots: Sequence[int] = (1, 1)
    options: Sequence[str] = ()
    not_under: Sequence[str] = ()
    only_under: Sequence[str] = ()
    elsewhere: str = ""

    @property
    def is_at_a_step(self) -> bool:
        """Whether it happens while the job trains."""
        return bool(self.fault) or self.strike is not None


START = 30.0  # seconds in which a job that is not to train has ended, with its start
WHOLE = 60.0  # seconds in which one has that makes some steps


CASES = (
    Case(
        number=1,
        title="a rank raises an error",
        fault="raise",
        codes=(1,),
        says=r"rank 1 of 2 on host \S+ failed: ValueError: odd",
        shows=r"failed: ValueError: odd$[^\n]*\n[^\n]*Traceback.*raise_an_error",
    ),
    Case(number=2, title="a rank calls sys.exit(7)", fault="exit7", codes=(7,), says=r"rank 1 of 2 on host \S+ .* 7\b"),
    Case(
        number=2,
        title="a rank calls sys.exit() with a message",
        fault="exit-message",
        codes=(1,),
        says=r"rank 1 of 2 on host \S+ .* 1\b",
        shows=r"this is why",
    ),
    Case(
        number=3,
        title="a rank calls sys.exit() while the others train",
        fault="exit0",
        codes=(1,),
        says=r"rank 1 of 2 on host \S+ left early, by sys.exit\(\) after step 5",
    ),
    Case(
        number=3,
        title="a rank calls os._exit(0) while the others train",
        fault="leave",
        codes=(1,),
        says=r"rank 1 of 2 on host \S+: left early, with exit code 0 after step \d",
    ),
    Case(
        number=4,
        title="a rank is killed",
        fault="SIGKILL",
        codes=(137,),
        says=r"rank 1 of 2 on host \S+: killed by SIGKILL",
    ),
    Case(
        number=5,
        title="a rank crashes in C",
        fault="SIGSEGV",
        codes=(139,),
        says=r"rank 1 of 2 on host \S+: killed by SIGSEGV",
        shows=r"Segmentation fault.*string_at.*faulty\.py",
    ),
    Case(
        number=6,
        title="a rank is stopped",
        fault="SIGSTOP",
        codes=(70,),
        says=r"rank 1 on host node2 in <lambda> \(faulty.py:\d+\); rank 0 ",
        shows=r"^rank 1, .*faulty\.py",
        within=5.0 + 2 * HANG + 10,
    ),
    Case(
        number=7,
        title="a rank holds the GIL in C",
        fault="GIL",
        codes=(70,),
        says=r" 3 s, .*rank 1 on host node2 in hold_the_gil .*rank 0 ",
        within=5.0 + 2 * HANG,
    ),
    Case(
        number=8,
        title="a rank sleeps while the others wait in a collective",
        fault="sleep",
        codes=(70,),
        says=r" 3 s, .*rank 1 on host node2 in .* \(faulty.py:\d+\); rank 0 ",
        shows=r"process group .*rank 0 in collective \d+ .*missing: rank 1",
        within=5.0 + 2 * HANG,
    ),
    Case(
        number=9,
        title="a rank makes another collective, by gloo",
        fault="skip",
        options=("--backend", "gloo"),
        says=r"rank \d of 2 on host \S+( failed|: killed by SIGABRT).*TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    Case(
        number=10,
        title="SIGTERM to the launcher",
        strike=signal(SIGTERM),
        says=r"SIGTERM",
        after=goes_on,
        within=10.0,
        not_under=SRUN,
    ),
    Case(
        number=10,
        title="SIGTERM to srun, which kills its ranks at once, with --save-every 2steps",
        strike=signal(SIGTERM),
        options=("--save-every", "2steps"),
        codes=(137,),
        after=goes_on,
        within=10.0,
        only_under=SRUN,
    ),
    Case(
        number=11,
        title="SIGUSR1 to the launcher",
        strike=signal(SIGUSR1),
        codes=(75,),
        says=r"SIGUSR1: saved \S+/step-\d+; continue with --resume",
        after=goes_on,
        within=10.0,
        not_under=TORCHRUN,
    ),
    Case(
        number=11,
        title="SIGUSR1 to torchrun, which it ends",
        strike=signal(SIGUSR1),
        kills_launcher=True,
        within=10.0,
        only_under=TORCHRUN,
    ),
    Case(
        number=12,
        title="SIGKILL to the launcher",
        strike=signal(SIGKILL),
        codes=(-SIGKILL, 137, 1),
        kills_launcher=True,
        within=10.0,
    ),
    Case(
        number=13,
        title="the time limit of a Slurm job comes near, by the scripts of mpi_scripts/",
        elsewhere="tests/cluster/test_requeue.py",
        instead=requeued,
        codes=(0,),
        says=r"/step-\d+",
        within=120,
        only_under=tuple(BY_LAUNCHER),
    ),
    Case(
        number=13,
        title="the time limit of Slurm itself, a minute",
        elsewhere="make test-faults",  # it takes two minutes
        instead=requeued_by_slurm,
        codes=(0,),
        says=r"/step-\d+",
        within=240,
        only_under=("srun",),
    ),
    Case(
        number=14,
        title="a rank is killed, and srun does not end the others (--kill-on-bad-exit=0)",
        fault="SIGKILL",
        codes=(137,),
        says=r"rank 1 of 2 on host \S+: killed by SIGKILL",
        only_under=("srun-kept",),
    ),
    Case(
        number=15,
        title="a rank is killed while each step is saved; the job starts again",
        elsewhere="tests/cluster/test_soak.py",
        fault="SIGKILL",
        options=("--save-every", "1steps", "--milliseconds", "0"),
        after=goes_on,
        says=r"rank 1 of 2 on host \S+: killed by SIGKILL",
    ),
    Case(
        number=15,
        title="the same, in shards and in the background (--strategy fsdp --save-async)",
        fault="SIGKILL",
        options=("--save-every", "1steps", "--milliseconds", "0", "--strategy", "fsdp", "--save-async"),
        after=goes_on,
        says=r"rank 1 of 2 on host \S+: killed by SIGKILL",
    ),
    *(
        Case(
            number=16,
            title=title,
            before=damage(how, name),
            options=("--resume", "auto", "--max-steps", "12"),
            codes=(0,),
            says=r"skipped: \S+/step-10",
            shows=r"/step-5,",
            within=WHOLE,
            elsewhere="" if how is cut_short else "tests/launched/test_resume.py",
        )
        for title, how, name in (
            ("the newest checkpoint is cut short", cut_short, WEIGHTS),
            ("a byte of the newest checkpoint is changed", flip_a_byte, WEIGHTS),
            ("the newest checkpoint has lost its metadata", Path.unlink, "checkpoint.json"),
        )
    ),
    Case(
        number=17,
        title="the disk of the checkpoints is full",
        before=small_disk,
        fault="fill",
        options=("--save-every", "4steps"),
        codes=(1,),
        says=r"No space left on device",
        after=verified,
    ),
    Case(
        number=17,
        title="the same, with a checkpoint in shards (--strategy fsdp)",
        elsewhere="make test-faults",
        before=small_disk,
        fault="fill",
        options=("--save-every", "4steps", "--strategy", "fsdp"),
        codes=(1,),
        says=r"No space left on device",
        after=verified,
    ),
    Case(
        number=18,
        title="the folder of the checkpoints cannot be written",
        elsewhere="tests/launched/test_refusals.py",
        options=("--checkpoint-dir", "/proc/checkpoints"),
        codes=(2,),
        says=r"--checkpoint-dir: .*/proc/checkpoints",
        within=START,
    ),
    Case(
        number=18,
        title="each host has a folder of checkpoints of its own",
        options=("--strategy", "fsdp", "--checkpoint-dir", "/dev/shm/checkpoints"),
        codes=(2,),
        says=r"--checkpoint-dir: \S+ is not the same folder on all hosts.*\(host node2\)",
        within=START,
    ),
    Case(number=19, title="two jobs at once on the same hosts", instead=two_at_once, codes=(0,), within=WHOLE),
    Case(
        number=19,
        title="MASTER_PORT is taken by another program",
        elsewhere="tests/launched/test_refusals.py",
        shell="export MASTER_ADDR=node1 MASTER_PORT=6817",  # slurmctld's
        codes=(2, 143),  # srun shows the larger code, here of a rank whose Python it has ended as it started
        says=r"MASTER_PORT=6817",
        within=START,
        not_under=TORCHRUN,
    ),
    Case(
        number=20,
        title="MASTER_ADDR does not resolve",
        elsewhere="tests/launched/test_refusals.py",
        shell="export MASTER_ADDR=no-such-host.invalid MASTER_PORT=29511",
        codes=(2,),
        says=r"MASTER_ADDR=no-such-host\.invalid",
        within=START,
        not_under=TORCHRUN,
    ),
    Case(
        number=20,
        title="the port of MASTER_PORT is blocked by a firewall",
        before=block_port,
        shell=f'export MASTER_ADDR=node1 MASTER_PORT={PORT}; set -- "${{@:1:3}}" --timeout 10 "${{@:4}}"',
        undo=open_port,
        says=r"rank 1 of 2 on host node2: .*MASTER_ADDR=node1.*firewall",
        within=START,
        not_under=TORCHRUN,
    ),
    Case(
        number=20,
        title="GLOO_SOCKET_IFNAME names an interface that is not there",
        shell="export GLOO_SOCKET_IFNAME=eth9",
        options=("--backend", "gloo"),
        codes=(2,),
        says=r"--backend gloo: GLOO_SOCKET_IFNAME names eth9, which node1 and node2 lack; unset it",
        within=START,
    ),
    Case(
        number=21,
        title="a host's link goes down",
        strike=cut_off,
        options=("--at", "1", "--late", "4000"),  # just after it has told that the others are to wait for it
        codes=(70,),
        says=r" 3 s, .*rank 1 on host node2 has not answered; rank 0 ",
        within=120,  # the host that is cut off ends its own ranks after 30 s, and Slurm waits for its daemon there
        not_under=("mpich", "sbatch-mpich"),  # by UCX's shared memory its ranks continue: the hosts are one machine
    ),
    Case(
        number=21,
        title="a host's link goes down, with --hang-timeout 600",
        elsewhere="tests/cluster/test_spares.py",
        strike=cut_off,
        options=("--hang-timeout", "600"),
        says=r"rank 1 on host node2 is gone: its host has not answered for 30 s",
        within=120,
    ),
    Case(
        number=21,
        title="a host's agent is killed",
        fault="agent",
        says=r"killed by SIGKILL|its host's agent has ended",  # by its own proxy, or by the other host's agent
        within=10.0,
    ),
    Case(
        number=21,
        title="what imports for a host's ranks is killed",
        fault="importer",
        says=r"killed by SIGKILL",
        within=10.0,
    ),
    Case(number=21, title="the process that the launcher has started is killed", fault="proxy", within=10.0),
    Case(
        number=22,
        title="a rank is given other arguments",
        elsewhere="tests/launched/test_refusals.py",
        shell='[ "$(hostname)" = node1 ] || set -- "$@" --lr 0.5',
        codes=(2,),
        says=r"the arguments: .*rank 0 \(node1\).*rank 1 \(node2\)",
        within=START,
    ),
    Case(
        number=23,
        title="more ranks on one host than on the other",
        slots=(2, 1),
        options=("--max-steps", "10", "--hang-timeout", "60"),  # on busy cores three ranks do not start together
        codes=(0,),
        says=r"done: 10 steps",
        within=WHOLE,
        not_under=("srun-torchrun",),  # equally many on each node
    ),
    Case(
        number=24,
        title="a container hides the launcher's variables",
        elsewhere="tests/launched/test_refusals.py",
        shell='set -- env -i PYTHONPATH="$PYTHONPATH" "$@"',
        codes=(2, 143),  # as above
        says=r"env -i",
        within=START,
    ),
    Case(
        number=24,
        title="variables of another launcher say something else",
        elsewhere="tests/unit/launch/test_detect.py",
        shell="export MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=8",
        codes=(2,),
        says=r"MVAPICH2 .*rank 0 of 8",
        within=START,
        not_under=TORCHRUN,  # which may be started by MVAPICH2, and has variables of its own
    ),
    Case(
        number=25,
        title="a loss that is NaN on one rank, with --check-finite",
        fault="nan",
        options=("--check-finite",),
        codes=(1,),
        says=r"--check-finite: .*nan on rank 1",
    ),
    Case(
        number=26,
        title="a bit of a parameter flips on one rank, with --check-replicas",
        fault="bit",
        options=("--check-replicas", "2"),
        codes=(1,),
        says=r"--check-replicas: weight differs on ranks 0-1 \(\S+, \S+\) after step 6",
    ),
    Case(
        number=27,
        title="a rank is slow",
        elsewhere="tests/launched/test_stragglers.py",
        options=("--late", "60", "--max-steps", "64", "--milliseconds", "1", "--at", "0"),
        codes=(0,),
        says=r"rank 1 on host node2 .*waiting",
        within=WHOLE,
    ),
    Case(
        number=28,
        title="the data set raises an error in a loader's worker",
        fault="loader",
        options=("--workers", "1"),
        codes=(1,),
        says=r"rank 1 of 2 on host \S+ failed: ValueError: odd \(in DataLoader worker process 0\)",
    ),
    Case(
        number=29,
        title="a training of four ranks continues with two",
        before=save_by_four,
        options=("--resume", "auto", "--max-steps", "12"),
        codes=(0,),
        says=r"/step-10,",
        within=WHOLE,
    ),
    Case(
        number=30,
        title="a rank takes more memory than the job has",
        fault="memory",
        options=("--hang-timeout", "60"),  # to fill it may take longer than three seconds
        shell=LITTLE_MEMORY,
        undo=clear_group,
        says=r"rank \d of 2 on host \S+: killed by SIGKILL.* memory",  # the kernel chooses
        within=60.0,  # with the filling
    ),
    Case(
        number=31,
        title="Ctrl-C",
        strike=signal(SIGINT),
        codes=(1, 130),
        says=r"SIG(INT|TERM) from the launcher.*continue from its last checkpoint",
        within=10.0,
        not_under=SRUN,
    ),
    # Open MPI 4 may show nothing more after the second.
    Case(number=31, title="Ctrl-C, twice", strike=signal(SIGINT, SIGINT), codes=(1, 130, 137, 255), within=10.0),
)


def occurs(case: Case, launcher: str) -> bool:
    """Whether a case can occur under a launcher, and can be brought about here."""
    if case.fault == "memory" and not os.access(MEMORY / "cgroup.procs", os.W_OK):
        return False  # it takes control groups of version 1, and the right to make one
    if case.only_under:
        return launcher in case.only_under
    return launcher not in case.not_under and launcher != "srun-kept"
