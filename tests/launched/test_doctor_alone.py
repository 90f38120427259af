"""The doctor warns of a process that is alone in a job of several tasks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launching import RUNNER, ok, run
from tests.unit.launch.test_detect import captured


def ranks_check(**environment: str) -> dict[str, str]:
    done = ok(run(*RUNNER, "doctor", "--json", "--only", "ranks", **environment))
    check: dict[str, str] = json.loads(done.stdout)["checks"][0]
    return check


def test_a_process_alone_in_a_job_of_several_tasks_is_warned_of(tmp_path: Path) -> None:
    batch = captured("slurm-batch-shell")
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\n")
    for environment, tasks in ((batch, 4), ({"PBS_NODEFILE": str(nodes)}, 3), ({"LSB_DJOB_NUMPROC": "2"}, 2)):
        check = ranks_check(**environment)
        assert check["status"] == "warn"
        assert f"the scheduler's job has {tasks} tasks" in check["detail"]
        assert "srun" in check["fix"]
    assert ranks_check(SLURM_JOB_ID="8", SLURM_NTASKS="1")["status"] == "ok"
    assert ranks_check(PBS_NODEFILE="/no/such/file")["status"] == "ok"  # left over from a job
