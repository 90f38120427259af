"""Layers look down only, and torch comes in where it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.launching import ROOT, clean_environment
from tests.polling import LIMIT

_ROWS = [
    line.split("|")[1:-1]
    for line in (ROOT / "docs" / "develop" / "design.md").read_text().splitlines()
    if "| `" in line
]
# Package or module of runner/: what it imports of runner/, itself not counted. In this order each imports only those before it.
TABLE = {part.strip(" `"): set(imports.replace(",", " ").split()) for part, _, imports in _ROWS}
FILES = sorted((ROOT / "runner").rglob("*.py"))


def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: modules, and names in them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """The parts of runner/ that a file imports."""
    return {name.split(".")[1] for name in modules(path) if name.startswith("runner.")} - {"__version__"}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "runner").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "runner")))
def test_layers_look_down_only(path: Path) -> None:
    part = part_of(path)
    assert imported(path) - {part} <= TABLE.get(part, {"cli"})


SHARED = {"jobscript", "tables"}  # folders of runner/tools/ that several tools need


@pytest.mark.parametrize(
    "path", sorted((ROOT / "runner" / "tools").glob("*/*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_tool_imports_another(path: Path) -> None:
    folders = {one.name for one in (ROOT / "runner" / "tools").iterdir() if one.is_dir()}
    others = folders - SHARED - {path.parent.name}
    assert not {name for name in modules(path) if name.startswith("runner.tools.") and name.split(".")[2] in others}


# What the methods of Run import, which is a type to all of these.
OF_RUN = {f"runner.training.{name}" for name in ("hooks.state", "loop", "model", "own_loop", "summary", "workload")}


def test_no_modules_import_each_other() -> None:
    """Also by way of others, within functions and for types only. Run's methods are the exception."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
    known = set(names.values())
    graph = {
        name: {one if one in known else one.rpartition(".")[0] for one in modules(path)} & known - {name}
        for path, name in names.items()
    }
    graph["runner.training.run"] -= OF_RUN
    TopologicalSorter(graph).prepare()


def test_class_names_are_unique() -> None:
    """Each class has a name of its own, except a workload's Options."""
    found = Counter(
        node.name
        for folder in ("runner", "workloads")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name != "Options"
    )
    assert [name for name, times in found.items() if times > 1] == []


def test_the_table_of_the_design_document_says_what_is_imported_and_in_which_order() -> None:
    for place, (part, imports) in enumerate(TABLE.items()):
        assert imports == set().union(*(imported(path) for path in FILES if part_of(path) == part)) - {part}
        assert imports <= {*list(TABLE)[:place]}
    assert {part_of(path) for path in FILES} == {*TABLE, "__init__", "__main__"}


def changes_environment(node: ast.AST) -> bool:
    """Whether a statement sets or removes a variable of the own process: by os.environ, or by os.putenv and os.unsetenv."""

    def is_environ(value: ast.AST) -> bool:
        return ast.unparse(value) in ("os.environ", "environ")

    if isinstance(node, ast.Subscript):
        return is_environ(node.value) and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.AugAssign):
        return is_environ(node.target)
    if isinstance(node, ast.Attribute):
        changing = node.attr in ("update", "setdefault", "pop", "popitem", "clear")
        return (changing and is_environ(node.value)) or ast.unparse(node) in ("os.putenv", "os.unsetenv")
    return False


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("os.environ['A'] = 'b'", True),
        ("del os.environ['A']", True),
        ("os.environ |= more", True),
        ("os.environ.update(more)", True),
        ("values = os.environ | {'A': os.environ['B'], 'C': os.environ.get('D')}", False),
    ],
)
def test_a_change_of_the_environment_is_seen(text: str, changes: bool) -> None:
    assert any(map(changes_environment, ast.walk(ast.parse(text)))) == changes


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "runner")))
def test_the_environment_is_changed_in_one_place(path: Path) -> None:
    changes = any(map(changes_environment, ast.walk(ast.parse(path.read_text()))))
    assert changes == (path == ROOT / "runner" / "base" / "environment.py")


def test_nothing_in_the_runner_imports_a_workload() -> None:
    for path in FILES:
        assert "import workloads" not in path.read_text()
        assert "from workloads" not in path.read_text()


def test_workloads_import_training_only() -> None:
    for path in (ROOT / "workloads").rglob("*.py"):
        assert imported(path) <= {"training", "base", "parallel"}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


@pytest.fixture
def without_torch(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which importing torch or NumPy fails, while its version can be read."""
    for name in ("torch", "numpy", "torchvision"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
        (tmp_path / name / "version.py").write_text("__version__ = '2.14.0'\n")
    return str(tmp_path)


def test_importing_the_runner_imports_no_torch(without_torch: str) -> None:
    done = python("-c", "import runner, runner.cli, runner.starting.dispatch", PYTHONPATH=without_torch)
    assert done.returncode == 0, done.stderr


def test_explain_imports_no_torch(without_torch: str) -> None:
    done = python("-m", "runner", "explain", PYTHONPATH=without_torch)
    assert done.returncode == 0, done.stderr
    assert "torch 2.14.0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--help"], {}),
        (["plan", "--help"], {}),
        (["plan", "workloads.mnist", "--gpus", "4", "--memory", "80XB"], {}),
        (["compare", "--help"], {}),
        (["compare", "workloads.mnist", "--engines", "ddp:gloo,fdsp"], {}),
        (["compare", "workloads.mnist", "--engines", "zero1+tp2"], {}),
        (["compare", "workloads.mnist", "--engines", "ddp,tp2"], {}),  # of one rank
        (["compare", "workloads.mnist", "--tp", "2"], {}),
        (["nothing.like.this"], {}),
        (["missing.py"], {}),
        (["workloads.models"], {}),
        (["workloads.mnist", "--device", "cuda"], {}),
        (["workloads.mnist"], {"OMPI_COMM_WORLD_RANK": "0"}),
        (["workloads.mnist"], {"RANK": "0", "WORLD_SIZE": "2"}),
    ],
)
def test_a_wrong_launch_is_refused_without_torch(
    without_torch: str, arguments: list[str], environment: dict[str, str]
) -> None:
    done = python("-m", "runner", *arguments, PYTHONPATH=without_torch, **environment)
    assert done.returncode == (0 if "--help" in arguments else 2), done.stderr
    assert "was imported" not in done.stderr
