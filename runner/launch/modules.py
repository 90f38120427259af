"""Modules, found without importing their packages; and workloads, imported.

Of the name ``workloads`` there may be two packages, this project's and one of the user's. ``workloads.NAME`` is in the first on ``sys.path``
that has this module: the user's hides ours only where both have it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from runner.launch.detect import is_reporting

_WORKLOADS = "workloads"
_OURS = str(Path(__file__).parents[2])  # the folder of ours


def module_file(name: str, *, run_as_main: bool) -> Path | None:
    """The source of a module, or of its package's ``__main__``; None where there is none."""
    if not name.startswith(f"{_WORKLOADS}."):
        return _file_in(None, name, run_as_main=run_as_main)
    return next(filter(None, (_file_in(place, name, run_as_main=run_as_main) for place in _places())), None)


def workload_names() -> list[str]:
    """Return the names of this project's workloads and of the user's."""
    folders: list[str] = []
    for place in _places():
        spec = importlib.machinery.PathFinder.find_spec(_WORKLOADS, [place])
        folders += _folders(spec) if spec is not None else []
    names = [f"{_WORKLOADS}.{module.name}" for module in pkgutil.iter_modules(folders) if not module.ispkg]
    return list(dict.fromkeys(names))


def import_workload(name: str) -> ModuleType:
    """Import the module whose file is ``module_file(name)``. One rank says so if it hides one of ours."""
    if name.startswith(f"{_WORKLOADS}."):
        place = next(place for place in _places() if _file_in(place, name) is not None)
        if (hiding := _hiding(place, name)) and is_reporting(os.environ):
            print(f"runner: {hiding}", file=sys.stderr, flush=True)
        _take_package_from(place)
    return importlib.import_module(name)


def _hiding(place: str, name: str) -> str:
    """Return a warning if a user's module in this folder hides one of ours; else ""."""
    path, ours = _file_in(place, name), _file_in(_OURS, name)
    if path is None or ours is None or path.samefile(ours):
        return ""
    return f"{_shown(Path(place, _WORKLOADS))} hides the runner's own workloads: {name} is {_shown(path)}"


def _shown(path: Path) -> str:
    """Return a path as it is shown: with ./ in the working folder."""
    return f".{os.sep}{path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else str(path)


def _places() -> list[str]:
    return list(dict.fromkeys([*(entry or os.getcwd() for entry in sys.path), _OURS]))


def _file_in(place: str | None, name: str, *, run_as_main: bool = False) -> Path | None:
    search: Sequence[str] | None = None if place is None else [place]
    spec: importlib.machinery.ModuleSpec | None = None
    for number, part in enumerate(name.split(".")):
        # Only an editable installation's own finder knows the packages of that.
        finders = [importlib.machinery.PathFinder, *(sys.meta_path if place is None and number == 0 else ())]
        try:
            # Only the last part of the name: with a dotted name, a package without __init__ imports its parent.
            spec = next(filter(None, (finder.find_spec(part, search) for finder in finders)), None)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        search = spec.submodule_search_locations or ()
    if spec is not None and spec.submodule_search_locations and run_as_main:
        return _file_in(place, f"{name}.__main__")
    return Path(spec.origin) if spec is not None and spec.origin and os.path.isfile(spec.origin) else None


def _take_package_from(place: str) -> None:
    """Have the package ``workloads`` be what is in this folder."""
    spec, usual = importlib.machinery.PathFinder.find_spec(_WORKLOADS, [place]), importlib.util.find_spec(_WORKLOADS)
    assert spec is not None
    if usual is not None and _folders(usual) == _folders(spec):
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules[_WORKLOADS] = package
    if spec.loader is not None:
        spec.loader.exec_module(package)


def _folders(spec: importlib.machinery.ModuleSpec) -> list[str]:
    """Return the folders of a package's modules."""
    return list(spec.submodule_search_locations or ())
