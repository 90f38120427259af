"""A call at the end of a module's import, whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call as soon as a module has been imported: now, if it has been; else after what was asked for before."""
    if module in sys.modules:
        call()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.module == module:
            finder.calls.append(call)
            return
    sys.meta_path.insert(0, _Finder(module, call))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, in the usual way, and calls at the end of its import."""

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
        # Not before: a program may only look whether the module is there.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            for call in self.calls:
                call()


class _CallingLoader(importlib.abc.Loader):
    """Another loader, and a call at the end of what it does."""

    def __init__(self, loader: importlib.abc.Loader, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and its kin, which tracebacks and inspect ask for

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._call()
