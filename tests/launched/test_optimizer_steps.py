"""Which calls of an optimizer's step count, where programs and libraries make several kinds of them."""

from __future__ import annotations

import sys
import textwrap

from tests.launching import ok, run

BEFORE = """
import torch
from runner.measuring.optimizer_steps import OptimizerSteps

seen = []
OptimizerSteps(2, lambda: seen.append("begin"), lambda: seen.append("step")).watch()

def sgd(size):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(size))], lr=0.1)

"""

CASES = {
    "one": ("one = sgd(3)\nfor _ in range(4): one.step()", "begin step step"),
    "a smaller one beside it": ("large, small = sgd(9), sgd(3)\nfor _ in range(4): small.step(), large.step()", "begin step step"),
    "a smaller one more often": (
        "large, small = sgd(9), sgd(3)\nfor number in range(8): number % 2 and large.step(), small.step()",
        "begin step step",
    ),
    "two as large": ("one, other = sgd(3), sgd(3)\nfor _ in range(4): one.step(), other.step()", "begin step step"),
    "a step that makes another's state": ("sgd(3).step()\none = sgd(3)\nfor _ in range(4): one.step()", "begin step step"),
    "steps that make another's state": (
        "made = sgd(3)\nfor _ in range(2): made.step()\none = sgd(3)\nfor _ in range(4): one.step()",
        "begin begin step",
    ),
    "a larger one later": (
        "small, large = sgd(3), sgd(9)\nfor _ in range(3): small.step()\nfor _ in range(3): large.step()",
        "begin step begin step",
    ),
    "one that the runner tries": (
        "from runner.parallel.support import TRIED\ntried, one = sgd(9), sgd(3)\nvars(tried)[TRIED] = True\n"
        "for _ in range(4): tried.step()\nfor _ in range(4): one.step()",
        "begin step step",
    ),
    "a step within a step of the same object, as Horovod has it": (
        "class Outer(torch.optim.SGD):\n    def step(self): return super().step()\n"
        "one = Outer([torch.nn.Parameter(torch.zeros(3))], lr=0.1)\nfor _ in range(4): one.step()",
        "begin step step",
    ),
}  # fmt: skip


def test_steps_of_the_training_count_once() -> None:
    """Each case in a fork of one process that has imported torch."""
    source = "import os, sys\nimport torch\n"
    for program, _ in CASES.values():
        own = textwrap.indent(f"{BEFORE}{program}\nprint(*seen, flush=True)\nos._exit(0)", "    ")
        source += f"if os.fork() == 0:\n{own}\nassert os.wait()[1] == 0\n"
    found = ok(run(sys.executable, "-c", source)).stdout.splitlines()
    assert dict(zip(CASES, found, strict=True)) == {case: expected for case, (_, expected) in CASES.items()}
