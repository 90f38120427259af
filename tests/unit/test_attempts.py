"""Before a job is started again its ranks have ended, also those that have lost their launcher."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from runner.tools.supervise.attempts import wait_for_ranks


def write(folder: Path, rank: int, **state: Any) -> None:
    (folder / "state").mkdir(exist_ok=True)
    (folder / "state" / f"rank-{rank:05d}.json").write_text(json.dumps({"rank": rank, "interval": 0.1, **state}))


def test_a_rank_on_this_host_runs_as_long_as_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        write(tmp_path, 0, host=socket.gethostname(), pid=process.pid, time=1.0, phase="saving")
        assert [one.rank for one in wait_for_ranks(tmp_path, everywhere=False, within=0.5)] == [0]
        process.kill()
        process.wait()
        assert wait_for_ranks(tmp_path, everywhere=False, within=60) == []


def test_a_rank_on_another_host_runs_as_long_as_its_guard_says_so(tmp_path: Path) -> None:
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), phase="training", interval=1000)
    assert wait_for_ranks(tmp_path, everywhere=False) == []
    assert [one.rank for one in wait_for_ranks(tmp_path, everywhere=True, within=0.5)] == [1]
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), phase="training")
    assert wait_for_ranks(tmp_path, everywhere=True, within=60) == []  # it has been silent
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="ended", exit_code=137)
    assert wait_for_ranks(tmp_path, everywhere=True) == []
    write(tmp_path, 0, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="ended", exit_code=1, lost=1)
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="training")
    assert wait_for_ranks(tmp_path, everywhere=True) == []
