"""A workload that runs others, and tools, one after the other in one job: those that tests/turns.py writes into a folder."""

import importlib
import json
import os
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from runner.base.errors import EXIT_OK, RunnerError
from runner.options.command import given_in
from runner.parallel.mesh import lay_out
from runner.starting.ending import outcome_of
from runner.tools.registry import TOOLS, load_tool
from runner.training.run import Run
from runner.training.workload import call


def main(run: Run, argv: list[str]) -> None:
    folder, asking = Path(argv[0]), Path("/proc", argv[1])
    for number in count():
        turn = folder / str(number)
        pause = 0.01
        while not turn.exists():
            if not asking.exists():
                return
            time.sleep(pause)
            pause = min(1.1 * pause, 0.2)  # some thirty ranks wait so in the background of other tests
        asked = json.loads(turn.read_text())
        if not asked["command"]:
            return
        for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
            stream.flush()
            with open(f"{turn}.{name}.{run.rank}", "wb") as file:
                os.dup2(file.fileno(), stream.fileno())
        code = code_of(run, asked)
        sys.stdout.flush()
        sys.stderr.flush()
        new = folder / f"new.{run.rank}"
        new.write_text(str(code))
        new.rename(f"{turn}.code.{run.rank}")  # it is there at once


def code_of(run: Run, asked: dict[str, Any]) -> int:
    """Run one, with the messages and the exit code that it would have alone. An error of one rank ends the job."""
    name, *arguments = asked["command"]
    sys.path[0] = asked["cwd"]  # as the runner sets it
    os.chdir(asked["cwd"])
    before = dict(os.environ)
    os.environ.update(asked["environment"])
    try:
        if name in TOOLS:
            load_tool(name)(run.job, arguments)
        else:
            given = given_in(arguments)
            layout = lay_out(run.job.topology, given.parallel().degrees(run.size))
            limits = {name: given.values.get(name) for name in ("time_limit", "time_to_save")}
            run = replace(run, job=replace(run.job, **limits))
            call(importlib.import_module(name).main, replace(run, workload=name, layout=layout), arguments)
    except (RunnerError, SystemExit) as error:
        if run.size > 1 and not getattr(error, "on_all_ranks", isinstance(error, SystemExit) and not error.code):
            raise
        return outcome_of(error, run.job.context, run.job).code
    finally:
        os.environ.clear()
        os.environ.update(before)
        if "torch._dynamo" in sys.modules:  # what it has compiled for one model makes the next one's shapes dynamic
            sys.modules["torch._dynamo"].reset()
    return EXIT_OK
