"""The console script ``torch-mpi-runner``, also as ``python -m mpi_scripts.console``.

It does what ``python -m runner`` does, also where a user's ``runner.py`` or ``runner/`` lies in the working folder or on PYTHONPATH:
``python -m runner`` would run that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; ends the process with the exit code that the README documents."""
    package = _import_package("runner")
    from runner.cli import main as run
    from runner.launch.program import put_first_on_path

    put_first_on_path(os.getcwd())  # of a script Python puts its own folder there, that of the installed programs
    # Processes that multiprocessing starts anew run __main__ again, unless it is a package's.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(f"{package.__name__}.__main__")
    run()


def _import_package(name: str) -> ModuleType:
    """The package beside this folder, whatever is first on ``sys.path``."""
    file = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


if __name__ == "__main__":
    main()
