"""The reference of the command line, from the settings themselves: docs/reference/command-line.md.

python -m tests.reference        (make reference)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass

import workloads
from runner.base.settings import GROUPS, DeclaredSetting, settings_in
from runner.options.job_settings import JobSettings
from runner.tools.registry import TOOLS
from runner.training.settings import Settings
from runner.training.workload import settings_class
from tests.pages import DOCS

DOCUMENT = DOCS / "reference/command-line.md"
HEAD = """\
# Command line

Written by `make reference`.

    python -m runner [options] TARGET [arguments]
    python -m runner --help             the tools and workloads
    python -m runner TARGET --help      the options that most people need; --help-all: all

The console script `torch-mpi-runner` does what `python -m runner` does, also where the working folder has a `runner.py` of its own.

The options of the job stand before the target, for a workload also after its name. All of them, and a workload's, may stand in a TOML
file (`--config FILE`), by their names without dashes in front (`epochs = 3`); the command line overrides the file, and the file a
workload's own defaults. `--no-NAME` switches off what a file switches on. Options in *italics* are shown by `--help-all` only; those
with • change the result of a training: a resumed run says which of them have changed.
"""


@dataclass(frozen=True, kw_only=True)
class AnyOptions(Settings):
    """Those of a workload that adds none."""


def rows(settings: Iterable[DeclaredSetting]) -> str:
    lines = ["| option | default | |", "|---|---|---|"]
    for one in settings:
        about = one.about
        name = f"`{one.flag}{'' if one.is_switch else ' ' + (f'[{one.metavar}]' if about.bare is not None else one.metavar)}`".replace(
            "|", "\\|"
        )
        default = (
            about.shows
            if about.shows != ""
            else ""
            if one.default in (None, ()) or one.is_switch
            else one.text_of(one.default)
        )
        mark = " •" if about.changes else ""
        lines.append(
            f"| {f'*{name}*' if about.advanced else name}{mark} | {default or ''} | {about.help.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines) + "\n"


def page() -> str:
    parts = [HEAD, "## Of every job\n", rows(one for one in settings_in(JobSettings).values() if not one.about.hidden)]
    shared = settings_in(AnyOptions)
    for group in GROUPS:
        if own := [one for one in shared.values() if one.about.group == group]:
            parts += [f"## Of every workload: {group}\n", rows(own)]
    for module in pkgutil.iter_modules(workloads.__path__, "workloads."):
        if not module.ispkg and (kind := settings_class(importlib.import_module(module.name).main)) is not None:
            own = [one for name, one in settings_in(kind).items() if name not in shared or one != shared[name]]
            parts += [f"## `{module.name}`\n", "Its own options, and its own defaults for shared ones.\n", rows(own)]
    parts += ["## Tools\n", "\n".join(f"* `{name}`: {tool.summary}" for name, tool in TOOLS.items()) + "\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(page())
