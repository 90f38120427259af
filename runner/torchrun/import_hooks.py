"""Hooks that run while a module is imported, or at the end of its import."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

from runner.base.collector import paused_collector
from runner.versions.torch_private import COMPILER

AHEAD = ("torch.distributed", COMPILER)  # DDP's constructor imports the second
_calls: dict[str, list[Callable[[], None]]] = {}  # by modules that are not imported yet


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call a function when a module has been imported, or now if it has been; several in the order of their requests."""
    if module in sys.modules:
        call()
    else:
        import_without_collector(module)
        _calls[module].append(call)


def import_without_collector(*modules: str) -> None:
    """Pause Python's garbage collector during the imports of these modules.

    They make hundreds of thousands of objects that stay, and it would look through them again and again: a fifth of the CPU
    time of torch's imports (2.14; 2.15 s with it, 1.75 without).
    """
    for module in modules:
        if module not in sys.modules and module not in _calls:
            _calls[module] = []
            # Before the finders that were added since the last call: it asks them, and not the other way round.
            sys.meta_path[:] = [_FINDER, *(finder for finder in sys.meta_path if finder is not _FINDER)]


def call_for_imported(modules: Collection[str]) -> None:
    """Run the calls of modules that have been imported."""
    for module in [name for name in _calls if name in modules]:
        # Only now: find_spec() is also called by programs that only check whether the module exists.
        for call in _calls.pop(module, ()):
            call()
    if not _calls and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


class _CallingFinder(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, pauses the collector during their imports, and runs their calls once, at the end."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _calls:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)  # an old one has none
            if find is not None and finder is not self and (spec := find(name, path, None)) is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader)
                found: importlib.machinery.ModuleSpec = spec
                return found
        return None


_FINDER = _CallingFinder()


class _CallingLoader(importlib.abc.Loader):
    """A loader that wraps another one, and runs a module's calls after it has executed the module."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and others, which tracebacks and inspect use

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with paused_collector():
            self._loader.exec_module(module)
            call_for_imported({module.__name__})  # now: later, the collector has looked through all that is new
