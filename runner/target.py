"""What is to be run: a tool, a script, a module, or a workload; found and read, not yet imported.

Modules are found without importing their packages, so that a wrong name, or a rank whose copy of the code
differs, is refused before torch comes in.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A thing to run. ``digest`` is of its source text, "" for a tool."""

    kind: str  # tool, script, module, workload
    name: str
    path: Path | None = None
    digest: str = ""


def find_target(name: str, *, as_module: bool, tools: Iterable[str]) -> Target:
    """Find what ``python -m runner [-m] NAME`` means.

    Raises:
        UsageError: there is no such tool, script or module, or the module has no ``main``.
    """
    if as_module:
        path = _module_file(name, run_as_main=True)
        if path is None:
            raise UsageError(f"no module named {name}{_near(name, _workloads())}; it is looked for in {_places()}")
        return Target("module", name, path, _digest(path))
    if name in tools:
        return Target("tool", name)
    if name.endswith(".py") or os.sep in name:
        script = Path(name)
        if not script.is_file():
            near = _near(script.name, (p.name for p in script.parent.glob("*.py")) if script.parent.is_dir() else ())
            raise UsageError(f"no script {name} in {Path.cwd()}{near}")
        return Target("script", name, script, _digest(script))
    path = _module_file(name, run_as_main=False)
    if path is None:
        scripts = [p.name for p in Path.cwd().glob("*.py")]
        known = [*tools, *_workloads(), *scripts]
        raise UsageError(
            f"unknown target {name!r}{_near(name, known)}; a target is a tool ({', '.join(tools)}), a script (train.py), "
            f"-m package.module, or a workload ({', '.join(_workloads())})"
        )
    if not _binds_main(path):
        raise UsageError(
            f"module {name} has no main(run, argv), so it is no workload; to run it as a program: -m {name}"
        )
    return Target("workload", name, path, _digest(path))


def _module_file(name: str, *, run_as_main: bool) -> Path | None:
    """The source of a module, or of its package's ``__main__``; None where there is none."""
    search: Iterable[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    for depth in range(name.count(".") + 1):
        full_name = ".".join(name.split(".")[: depth + 1])
        try:
            spec = importlib.machinery.PathFinder.find_spec(full_name, list(search) if search is not None else None)
        except (ImportError, ValueError):
            return None
        if spec is None:
            spec = _editable(full_name) if search is None else None
        if spec is None:
            return None
        search = spec.submodule_search_locations or ()
    if spec is not None and spec.submodule_search_locations and run_as_main:
        return _module_file(f"{name}.__main__", run_as_main=False)
    return Path(spec.origin) if spec is not None and spec.origin and os.path.isfile(spec.origin) else None


def _editable(name: str) -> importlib.machinery.ModuleSpec | None:
    """A top-level package that an editable installation's finder knows and no folder on the path holds."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None


def _binds_main(path: Path) -> bool:
    """Whether the module binds the name ``main`` at its top level, as read from its text."""
    if path.suffix != ".py":
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.msg}") from None
    return any(_is_main(node) for statement in tree.body for node in _same_scope(statement))


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is below it (the branches of an if or a try), but not in a function's or a class's own scope."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _same_scope(child)


def _is_main(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == "main"
    if isinstance(node, ast.alias):  # "import *" may bring one; the import will tell
        return (node.asname or node.name) in ("main", "*")
    return isinstance(node, ast.Name) and node.id == "main" and isinstance(node.ctx, ast.Store)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _workloads() -> list[str]:
    spec = importlib.machinery.PathFinder.find_spec("workloads", None) or _editable("workloads")
    if spec is None or not spec.submodule_search_locations:
        return []
    return [f"workloads.{m.name}" for m in pkgutil.iter_modules(spec.submodule_search_locations) if not m.ispkg]


def _near(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _places() -> str:
    return ", ".join(entry or "." for entry in sys.path[:2])
