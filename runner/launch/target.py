"""The target: a tool, a workload, or a program in any form that Python runs; found and read, not yet imported.

Modules are found without importing their packages, so that a wrong name, or a rank whose copy of the code
differs, is refused before torch is imported.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import pkgutil
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from runner.base.command_name import COMMAND
from runner.base.errors import UsageError
from runner.launch.modules import module_file, workload_names

# The kinds of targets. All but the first two are programs.
TOOL, WORKLOAD = "tool", "workload"
SCRIPT = "script"  # also a folder or a zip file with a __main__.py
MODULE, CODE, STANDARD_INPUT, EXECUTABLE = "module", "code", "standard input", "executable"

# The options that say how a target's name is meant.
AS_MODULE, AS_CODE, NO_PYTHON = "-m", "-c", "--no-python"


class Target(NamedTuple):
    """The target of a command line.

    Attributes:
        name: as the user has named it; of code, its text.
        digest: a hash of its source, "" for a tool.
        source: of a program that is in no file.
    """

    kind: str
    name: str
    path: Path | None = None
    digest: str = ""
    source: bytes = b""

    @property
    def is_program(self) -> bool:
        return self.kind not in (TOOL, WORKLOAD)

    @property
    def runs_in_python(self) -> bool:
        """Whether it is a program that this process runs itself."""
        return self.is_program and self.kind != EXECUTABLE


def find_target(name: str, *, form: str = "", tools: Iterable[str]) -> Target:
    """Find what ``python -m runner [FORM] NAME`` means.

    Raises:
        UsageError: there is no such tool, script or module; a workload has no ``main(run, argv)``, or a program has
            one and does not call it.
    """
    if form == AS_CODE:
        return Target(CODE, "-c", digest=_hash(name.encode()), source=name.encode())
    if form == NO_PYTHON:
        if (program := shutil.which(name)) is None:
            fix = f"chmod +x {name}, or say --no-python bash {name}" if os.path.isfile(name) else ""
            raise UsageError(f"no program {name} to execute", fix=fix)
        executable = Path(program).absolute()
        return Target(EXECUTABLE, name, executable, _digest(executable))
    if form == AS_MODULE:
        path = module_file(name, run_as_main=True)
        if path is None:
            raise UsageError(
                f"no module named {name}{_near(name, workload_names())}",
                fix="it is looked for in the working folder, PYTHONPATH and the installed packages",
            )
        _refuse_idle(name, path, lambda: f"{name} without -m: {COMMAND} {name}")
        return Target(MODULE, name, path, _digest(path))
    if name in tools:
        return Target(TOOL, name)
    if name == "-":
        source = _standard_input()
        return Target(STANDARD_INPUT, name, digest=_hash(source), source=source)
    if is_path(name):
        script = Path(name)
        if script.is_dir():
            if not (script / "__main__.py").is_file():
                raise UsageError(f"the folder {name} has no __main__.py")
            return Target(SCRIPT, name, script, _digest(script / "__main__.py"))
        if not script.is_file():
            near = _near(script.name, (p.name for p in script.parent.glob("*.py")) if script.parent.is_dir() else ())
            raise UsageError(f"no script {name} in {Path.cwd()}{near}")
        if not has_main_of_its_own(name):
            _refuse_idle(name, script, lambda: _workload_of(script))
        return Target(SCRIPT, name, script, _digest(script))
    path = module_file(name, run_as_main=False)
    if path is None:
        scripts = [p.name for p in Path.cwd().glob("*.py")]
        known = [*tools, *workload_names(), *scripts]
        tool = f"a tool ({', '.join(tools)}), " if tools else ""
        raise UsageError(
            f"unknown target {name!r}{_near(name, known)}",
            fix=f"a target is {tool}a script (train.py), -m package.module, or a workload ({', '.join(workload_names())})",
        )
    _refuse_programs(name, path)
    return Target(WORKLOAD, name, path, _digest(path))


def is_path(name: str) -> bool:
    """Whether a target's name is that of a program's file or folder (or "-", standard input), and not of a module."""
    if name == "-" or name.endswith(".py") or os.sep in name:
        return True
    is_there = os.path.isfile(name) or os.path.isfile(os.path.join(name, "__main__.py"))
    return is_there and module_file(name, run_as_main=False) is None


def has_main_of_its_own(path: str) -> bool:
    """Whether it is a folder or a zip file, of which Python runs the ``__main__``."""
    return pkgutil.get_importer(path) is not None


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("standard input is a terminal, and no program", fix="give a file: - < train.py")
    source = sys.stdin.buffer.read()
    if not source.strip():
        raise UsageError(
            "no program on standard input, which most launchers give to rank 0 only", fix="save it as a file"
        )
    return source


def _refuse_idle(name: str, path: Path, instead: Callable[[], str]) -> None:
    """Refuse a workload given as a script or module: it would define ``main``, never call it, and exit with 0."""
    try:
        tree = _parse(path)
    except SyntaxError:
        return  # Python reports it when it runs the file
    main = _main_of(tree)
    is_used = any(isinstance(node, ast.Name) and node.id == "main" for node in ast.walk(tree))
    if main is not None and _parameters(main)[:1] == ["run"] and not is_used:
        raise UsageError(f"{name} defines {_signature(main)} and never calls it: it is a workload, so say {instead()}")


def _workload_of(path: Path) -> str:
    """How a file is started as a workload."""
    with contextlib.suppress(ValueError):
        dotted = ".".join(path.resolve().relative_to(Path.cwd()).with_suffix("").parts)
        found = module_file(dotted, run_as_main=False)
        if found is not None and found.samefile(path):
            return f"{dotted}: {COMMAND} {dotted}"
    return f"{path.stem}, in its folder: cd {path.resolve().parent}; {COMMAND} {path.stem}"


def _refuse_programs(name: str, path: Path) -> None:
    """Refuse a module that has no ``main(run, argv)``, as far as its source shows: to import a script is to run it."""
    if path.suffix != ".py":
        return
    try:
        tree = _parse(path)
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.msg}") from None
    main = _main_of(tree)
    if main is not None and (len(_parameters(main)) >= 2 or main.args.vararg):
        return
    names = {getattr(node, field, None) for node in ast.walk(tree) for field in ("name", "asname", "id")}
    if main is None and names & {"main", "*"}:
        return  # only the import can tell
    has = f"has {_signature(main)} and" if main is not None else "has"
    is_script = path.parent == Path.cwd() and path.stem == name
    instead = f"did you mean {path.name}?" if is_script else f"to run it as a program: -m {name}"
    raise UsageError(f"module {name} {has} no main(run, argv), so it is no workload", fix=instead)


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are shown when the source is run
        try:
            return ast.parse(path.read_bytes())
        except OSError as error:
            raise _unreadable(path, error) from None
        except ValueError as error:  # null bytes, in Python 3.10 and 3.11
            raise SyntaxError(str(error), (str(path), 1, None, None)) from None


def _main_of(tree: ast.Module) -> ast.FunctionDef | None:
    """The function ``main`` of a module, unless a decorator makes something else of it."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.decorator_list)
    return next((function for function in functions if function.name == "main"), None)


def _parameters(main: ast.FunctionDef) -> list[str]:
    return [parameter.arg for parameter in [*main.args.posonlyargs, *main.args.args]]


def _signature(main: ast.FunctionDef) -> str:
    return f"main({', '.join(_parameters(main))})"


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]


def _digest(path: Path) -> str:
    try:
        return _hash(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}")


def workload_summaries() -> dict[str, str]:
    """The first phrase of each workload's docstring, by name. No workload is imported."""
    return {name: _first_phrase(name) for name in workload_names()}


def _first_phrase(module: str) -> str:
    try:
        file = module_file(module, run_as_main=False)
        text = ast.get_docstring(ast.parse(file.read_bytes())) if file else None
    except (OSError, SyntaxError, ValueError):
        return ""
    return re.split(r"[:,.]|\n", text or "")[0]


def _near(name: str, known: Iterable[str]) -> str:
    """A hint at similar names. ``.py`` and package names are left out: many names share them."""
    import difflib

    def own(name: str) -> str:
        return name.removesuffix(".py").rpartition(".")[2]

    names = list(known)
    near = difflib.get_close_matches(own(name), {own(one) for one in names}, n=2, cutoff=0.7)
    matches = [one for match in near for one in names if own(one) == match]
    return f" (did you mean {' or '.join(matches[:2])}?)" if matches else ""
