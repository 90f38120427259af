"""Hooks that run while a module is imported, or at the end of its import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

from runner.base.collector import paused_collector
from runner.versions.torch_private import COMPILER


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call a function when a module has been imported, or now if it has been; several in the order of their requests."""
    if module in sys.modules:
        call()
    else:
        _finder_of(module).calls.append(call)


def import_without_collector(*modules: str) -> None:
    """Pause Python's garbage collector during the imports of these modules.

    They make hundreds of thousands of objects that stay, and it would look through them again and again: a fifth of the CPU
    time of torch's imports (2.14; 2.15 s with it, 1.75 without).
    """
    for module in modules:
        if module not in sys.modules:
            _finder_of(module)


def _finder_of(module: str) -> _CallingFinder:
    for finder in sys.meta_path:
        if isinstance(finder, _CallingFinder) and finder.module == module:
            return finder
    new = _CallingFinder(module)
    sys.meta_path.insert(0, new)
    return new


def call_for_imported(modules: Collection[str]) -> None:
    """Run the calls of modules that are there, but were not imported by their finders."""
    for finder in list(sys.meta_path):
        if isinstance(finder, _CallingFinder) and finder.module in modules:
            finder.has_imported()


def _found_by_others(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)  # an old one has none
        if find is not None and not isinstance(finder, _CallingFinder) and (spec := find(name, path, None)) is not None:
            found: importlib.machinery.ModuleSpec = spec
            return found
    return None


class _CallingFinder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, pauses the collector during its import, and runs the calls once, at its end."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.calls: list[Callable[[], None]] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        spec = _found_by_others(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self.has_imported)
        return spec

    def has_imported(self) -> None:
        """The module is there: run the calls, once."""
        # Removed only after the import: find_spec() is also called by programs that only check whether the module exists.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            for call in self.calls:
                call()


class _CallingLoader(importlib.abc.Loader):
    """A loader that wraps another one, and makes a call after it has executed the module."""

    def __init__(self, loader: importlib.abc.Loader, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and others, which tracebacks and inspect use

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with paused_collector():
            self._loader.exec_module(module)
            self._call()


AHEAD = ("torch.distributed", COMPILER)  # DDP's constructor imports the second
