"""A call at the end of a module's import, whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call a function when a module has been imported, or now if it has been; several in the order of their requests."""
    if module in sys.modules:
        call()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.module == module:
            finder.calls.append(call)
            return
    sys.meta_path.insert(0, _Finder(module, call))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module in the usual way, and runs the calls once, at the end of its import."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self.module, self.calls = module, [call]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._is_imported)
        return spec

    def _is_imported(self) -> None:
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
        self._loader.exec_module(module)
        self._call()
