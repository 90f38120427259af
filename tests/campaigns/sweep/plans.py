"""What ``plan`` says of each case: layouts, or one line. In this process, as plan needs no other.

python -m tests.campaigns.sweep.plans [NAME…]
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from typing import Any

from runner.base.errors import UsageError
from runner.tools.plan.layouts import Cluster
from runner.tools.plan.plan import plan
from tests.campaigns.sweep.cases import CASES
from tests.campaigns.sweep.train import described

JOB: Any = SimpleNamespace(
    topology=Cluster(gpus=1, hosts=1).topology(), placement=SimpleNamespace(torch_device="cpu"), rank=0, size=1
)


def outcome(name: str) -> tuple[str, str]:
    """What comes of a case: planned, refused in one line, or neither."""
    shown = io.StringIO()
    arguments = ["tests.campaigns.sweep.cases", "--gpus", "2", "--memory", "1GB", "--batch-size", "8", "--case", name]
    try:
        with contextlib.redirect_stdout(shown):
            plan(JOB, arguments)
    except UsageError as error:
        return "refused", str(error)
    except Exception as error:
        return "FAILS", described(error)
    remarks = [line for line in shown.getvalue().splitlines() if line.startswith("left out")]
    return "planned", "; ".join(remarks)


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        what, detail = outcome(one)
        print("case " + json.dumps({"case": one, "where": "plan", "what": what, "detail": detail}), flush=True)
