"""Layers look down only, and the environment is changed in one place."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests import sources
from tests.launching import ROOT
from tests.sources import tree

_ROWS = [
    line.split("|")[1:-1]
    for line in (ROOT / "docs" / "develop" / "design.md").read_text().splitlines()
    if "| `" in line
]
# Package or module of runner/: what it imports of runner/, itself not counted. In this order each imports only those before it.
TABLE = {part.strip(" `"): set(imports.replace(",", " ").split()) for part, _, imports in _ROWS}
FILES = sources.FILES["runner"]


@cache
def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: modules, and names in them."""
    names = set()
    for node in ast.walk(tree(path)):
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


def test_layers_look_down_only() -> None:
    found = {path: imported(path) - {part_of(path)} - TABLE.get(part_of(path), {"cli"}) for path in FILES}
    assert {path: parts for path, parts in found.items() if parts} == {}


SHARED = {"jobscript", "tables"}  # folders of runner/tools/ that several tools need


def test_no_tool_imports_another() -> None:
    tools = ROOT / "runner" / "tools"
    folders = {one.name for one in tools.iterdir() if one.is_dir()} - SHARED
    for path in tools.glob("*/*.py"):
        used = {name.split(".")[2] for name in modules(path) if name.startswith("runner.tools.")}
        assert used & folders <= {path.parent.name}, path


# What the methods of Run import, which is a type to all of these.
OF_RUN = {f"runner.training.{name}" for name in ("loop", "model", "own_loop", "summary")}


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
        for path in [*FILES, *sources.FILES["workloads"]]
        for node in ast.walk(tree(path))
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


def test_the_environment_is_changed_in_one_place() -> None:
    changing = [path for path in FILES if any(map(changes_environment, ast.walk(tree(path))))]
    assert changing == [ROOT / "runner" / "base" / "environment.py"]


def test_the_runner_imports_no_workload_and_workloads_import_training_only() -> None:
    for path in FILES:
        assert not {name for name in modules(path) if name.partition(".")[0] == "workloads"}, path
    for path in sources.FILES["workloads"]:
        assert imported(path) <= {"training", "base", "parallel"}
