"""A program forked of a process that has imported torch finds torch as if it had imported it itself; and hooks of imports."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launching import PROGRAMS, ok, run
from tests.polling import LIMIT

SHARED = """
import os, sys
from runner.torchrun.import_hooks import AHEAD, when_imported
from runner.torchrun.shared_import import draw_own_numbers, import_once
assert import_once(AHEAD, {preloaded}) == ""
{before}
for _ in range({times}):
    if os.fork() == 0:
        draw_own_numbers()
        {program}
        sys.stdout.flush()
        os._exit(0)
    if code := os.wait()[1]:
        sys.exit(1)
"""


def output(
    program: str,
    before: str = "",
    times: int = 1,
    preloaded: Sequence[str] = (),
    folder: Path = Path("/"),
    **environment: str,
) -> str:
    """What a program prints that is forked, so many times, of a process which has imported torch."""
    source = SHARED.format(
        program=textwrap.indent(program, 8 * " ").lstrip(), before=before, times=times, preloaded=preloaded
    )
    command, own = [sys.executable, "-c", source], {"PATH": "/usr/bin"} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=own, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_it_is_not_in_sys_modules_before_the_program_imports_it_and_then_the_same_one() -> None:
    program = """
print([name for name in sys.modules if name.split(".")[0] in ("torch", "numpy", "torchgen", "functorch")])
import importlib.util
print(importlib.util.find_spec("torch").origin.endswith("torch/__init__.py"), "torch" in sys.modules)
import torch.distributed, torch.nn as nn, numpy
import torch
print(torch.__spec__.name, torch.__spec__.loader.get_filename() == torch.__file__, torch.distributed.is_available())
print(nn.Linear(2, 3)(torch.ones(1, 2)).shape, torch.from_numpy(numpy.ones(2)).sum().item())
torch.compile(lambda x: x, backend="eager")(torch.ones(2))
"""
    assert output(program).splitlines() == ["[]", "True False", "torch True True", "torch.Size([1, 3]) 2.0"]


def test_hooks_of_a_module_run_when_the_program_imports_torch() -> None:
    before = "for name in ('torch', 'torch.distributed'): when_imported(name, lambda name=name: print(name, name in sys.modules))"
    found = output("print('begin'); import torch", before).splitlines()
    assert found == ["begin", "torch.distributed True", "torch True"]


@pytest.mark.parametrize(
    ("variables", "code", "prints"),
    [
        ({}, "OMP_NUM_THREADS=1", "1"),
        ({"OMP_NUM_THREADS": "1"}, "", "1"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=2", "2"),
    ],
)
def test_the_number_of_threads_is_what_the_program_says_before_its_import(
    variables: dict[str, str], code: str, prints: str
) -> None:
    name, _, value = code.partition("=")
    program = f"os.environ[{name!r}] = {value!r}" if code else "pass"
    assert output(f"{program}\nimport torch; print(torch.get_num_threads())", **variables).splitlines() == [prints]


def test_each_process_has_random_numbers_of_its_own_as_without_sharing() -> None:
    program = "import numpy, random, torch; print(numpy.random.rand(), random.random(), torch.rand(1).item())"
    first, second = (line.split() for line in output(program, times=2).splitlines())
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_what_torch_reads_at_its_import_and_can_read_again_has_its_effect() -> None:
    program = """
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
os.environ["TORCH_LOGS"] = "+recompiles"
import torch.distributed
print(torch.distributed.get_debug_level().name)
print("recompiles" in str(torch._logging._internal.log_state.artifact_names))
"""
    assert output(program).splitlines() == ["DETAIL", "True"]


def test_what_has_come_too_late_is_said() -> None:
    program = "os.environ['TORCHINDUCTOR_FORCE_DISABLE_CACHES'] = '1'\nimport torch\nprint('end')"
    said = output(program)
    assert said.startswith("end\nrunner: TORCHINDUCTOR_FORCE_DISABLE_CACHES: set after the import of torch")
    assert said.endswith("--share-import off\n")
    assert output("os.environ['HF_HOME'] = '/x'\nimport torch\nprint('end')") == "end\n"  # torch reads none of it


def test_a_package_that_is_preloaded_uses_the_torch_of_the_program(tmp_path: Path) -> None:
    """Its threads, and random numbers that differ by process; a seed that it sets stays."""
    (tmp_path / "mymodel.py").write_text(
        "import numpy, torch\n"
        "def draw():\n    return torch.rand(1).item(), numpy.random.rand(), torch.get_num_threads()\n"
        "def seed():\n    numpy.random.seed(0)\n"
    )
    more: dict[str, Any] = {"preloaded": ["mymodel"], "folder": tmp_path, "times": 2, "OMP_NUM_THREADS": "2"}
    program = "print('mymodel' in sys.modules)\nimport mymodel\nprint(*mymodel.draw())"
    lines = output(program, **more).splitlines()
    assert lines[::2] == ["False", "False"]
    first, second = (line.split() for line in lines[1::2])
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] == second[2] == "2"
    seeded = output("import mymodel; mymodel.seed(); import numpy, torch; print(numpy.random.rand())", **more)
    assert seeded.splitlines() == ["0.5488135039273248"] * 2


def test_what_a_preloaded_package_has_drawn_and_read_at_its_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy, os, random\nnumbers, other = numpy.random.default_rng(), random.Random()\n"
        "place, unset = os.environ.get('HF_HOME', 'here'), os.getenv('HF_TOKEN')\n"
    )
    program = "os.environ['HF_HOME'] = os.environ['UNREAD'] = '/x'\nimport mine; print(mine.place)"
    said = output(program, preloaded=["mine"], folder=tmp_path).splitlines()
    assert said[0] == "here"
    assert said[1].startswith("runner: --preload mine has made random generators (Generator, Random)")
    assert said[2].startswith("runner: HF_HOME: read by --preload before it was set")
    assert len(said) == 3


def test_what_lies_beside_the_program_comes_first(tmp_path: Path) -> None:
    (tmp_path / "tqdm.py").write_text("own = True\n")
    assert output("sys.path.insert(0, ''); import tqdm, torch; print(tqdm.own)", folder=tmp_path) == "True\n"


def test_a_module_that_fails_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('odd')\n")
    source = "from runner.torchrun.shared_import import import_once; print(import_once((), ['broken']))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
    assert done.stdout == "--preload broken has failed: RuntimeError: odd\n"


def test_an_old_finder_is_left_aside() -> None:
    before = "sys.meta_path.insert(0, type('Old', (), {'find_module': lambda *_: None})())"
    before += "; when_imported('torch', lambda: print('called'))"
    assert output("import torch", before).splitlines() == ["called"]


@pytest.mark.parametrize("disabled", [[], ["disabled"]], ids=["enabled", "disabled"])
def test_the_collector_pauses_during_an_import_and_is_then_as_it_was(disabled: list[str]) -> None:
    done = ok(run(sys.executable, str(PROGRAMS / "environment" / "imports" / "without_collector.py"), *disabled))
    assert done.stdout.splitlines() == ["during False", "imported False", "broken", f"after {not disabled}"]


BESIDE = """\
import sys, types
from runner.torchrun.own_modules import hide_own_modules, own_module
hide_own_modules()
theirs = sys.modules["runner"] = types.ModuleType("runner")
seen = set()
sys.addaudithook(lambda event, _: seen.add(sys.modules["runner"] is theirs) if event == "exec" else None)
module = own_module("runner.guard.process.forks")
print(module.__name__, own_module(module.__name__) is module, seen, "runner.guard" in sys.modules)
"""


def test_the_runner_imports_its_modules_while_a_program_imports_its_own() -> None:
    done = ok(run(sys.executable, "-c", BESIDE))
    assert done.stdout == "runner.guard.process.forks True {True} False\n"
