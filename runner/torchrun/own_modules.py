"""Let a program have modules ``runner`` and ``workloads`` of its own, as thousands do, beside this project's.

Before a program starts, this package's modules leave ``sys.modules``. If the program imports ``runner``, it gets the one that is
on its path; if there is no other, it gets these modules, and they are back for good. Of ``workloads`` it gets the first on its path.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.torchrun.import_hooks import when_imported

_NAME = __name__.partition(".")[0]
_WORKLOADS = "workloads"
_SPAWNING = "multiprocessing.spawn"
_IN_SPAWNED = str(Path(__file__).with_name("spawned.py"))
# In every copy of this package, and in no other of its name.
_LANDMARK = Path("rendezvous", "methods", "mpi_library.py")
_hidden: dict[str, ModuleType] = {}


def hide_own_modules() -> None:
    """Let the program's ``import runner`` find its own. Call when its folder is on ``sys.path``, before it starts."""
    if not _hidden:
        names = [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]
        _hidden.update({name: sys.modules.pop(name) for name in names})
        sys.meta_path.insert(0, _ProgramsFinder())
        find_first_workloads()


def find_first_workloads() -> None:
    """Let imports find the first ``workloads`` on the path: Python itself takes an installed package before a folder of modules."""
    sys.meta_path.insert(0, _WorkloadsFinder())


def keep_own_modules() -> None:
    """Let the processes that multiprocessing starts anew import this package, too, where another ``runner`` is first on their path."""
    prepare_spawned(lambda _: None)


def prepare_spawned(served: Callable[[str], dict[str, Any] | None]) -> None:
    """Have the processes that multiprocessing starts anew run ``spawned.py`` first.

    Args:
        served: returns what a process of this name is told of the runner's store; None: only to import this package.
    """

    def wrap() -> None:
        module: Any = sys.modules[_SPAWNING]
        prepared = module.get_preparation_data
        module.get_preparation_data = lambda name: prepared(name) | {"runner": _InSpawned(served(name))}

    when_imported(_SPAWNING, wrap)


class _InSpawned:
    """Runs ``spawned.py`` where it is unpickled: before the new process has the path of the one that has started it."""

    def __init__(self, served: dict[str, Any] | None) -> None:
        self._served = served

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (_IN_SPAWNED, {"SERVED": self._served})


def own_module(name: str) -> ModuleType:
    """Import one of this package's modules, also where the program has others of their names.

    ``sys.modules`` stays as it is, as another thread may be importing the program's. So the module may define no dataclasses,
    which look for their module there.
    """
    if (own := _hidden.get(name)) is not None:
        return own
    if not _hidden:
        return importlib.import_module(name)
    parent, _, last = name.rpartition(".")
    package = own_module(parent)
    spec = importlib.machinery.PathFinder.find_spec(name, package.__path__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    spec.loader.exec_module(module)
    setattr(package, last, module)
    (_hidden or sys.modules)[name] = module  # the program may have imported this package meanwhile
    return module


def _import(
    name: str,
    names: Mapping[str, object] | None = None,
    local: Mapping[str, object] | None = None,
    wanted: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as an ``import`` statement in such a module does."""
    if name.partition(".")[0] != _NAME:
        return __import__(name, names, local, wanted or (), level)
    module = own_module(name)
    for part in wanted or ():
        if not hasattr(module, part):
            own_module(f"{name}.{part}")
    return module if wanted else own_module(_NAME)


class _ProgramsFinder(importlib.abc.MetaPathFinder):
    """Finds a program's ``runner`` anywhere on its path, or else this package's modules, which are loaded already."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME or not _hidden:
            return None
        others = [entry for entry in sys.path if not Path(entry or ".", _NAME, _LANDMARK).is_file()]
        theirs = importlib.machinery.PathFinder.find_spec(name, others)
        if theirs is not None and _has_source(theirs):
            return theirs
        return importlib.util.spec_from_loader(name, _Loaded(), is_package=True)


class _WorkloadsFinder(importlib.abc.MetaPathFinder):
    """Finds the first ``workloads`` on the path, be it a package, a module or a folder of modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _WORKLOADS:
            return None
        found = (importlib.machinery.PathFinder.find_spec(name, [entry]) for entry in sys.path)
        return next((spec for spec in found if spec is not None and _has_source(spec)), None)


class _Loaded(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        own = _hidden[_NAME]
        self.spec = own.__spec__
        sys.modules.update(_hidden)
        _hidden.clear()
        return own

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # that of this import is in its place


def _has_source(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether it is a module or package, or a folder of modules: not any folder that happens to have this name."""
    return spec.origin is not None or any(
        next(Path(folder).glob("*.py"), None) is not None for folder in spec.submodule_search_locations or ()
    )
