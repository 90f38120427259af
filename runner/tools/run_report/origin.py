"""The sections about what was started: settings, versions and the command."""

from __future__ import annotations

import shlex

from runner.tools.run_report.folder import RunFolder
from runner.tools.run_report.markup import NOT_KNOWN, absent, clock, table
from runner.tools.run_report.shown import Shown


def settings(shown: list[Shown]) -> str:
    """Those that were given, and the others to unfold."""
    if not any(one.run.given or one.run.defaults for one in shown):
        return absent("There is no <code>settings.toml</code>: the program is no workload.")
    whole = [one.run.defaults | one.run.given for one in shown]
    given = list(dict.fromkeys(name for one in shown for name in one.run.given))
    others = list(dict.fromkeys(name for one in whole for name in one if name not in given))
    titles = ["setting", *(one.run.name if len(shown) > 1 else "value" for one in shown)]

    def table_of(names: list[str]) -> str:
        rows = [[name, *(one.get(name, NOT_KNOWN) for one in whole)] for name in names]
        return table(titles, rows, differs=lambda row: len(set(row[1:])) > 1)

    hidden = (
        f"<details><summary>{len(others)} with their defaults</summary>{table_of(others)}</details>" if others else ""
    )
    return (table_of(given) if given else absent("All have their defaults.")) + hidden


def versions(shown: list[Shown]) -> str:
    """What was started, with which software."""
    columns = [_origin(one.run) for one in shown]
    rows = [[name, *(one[name] for one in columns)] for name in columns[0]]
    return table(
        ["", *(one.run.name if len(shown) > 1 else "" for one in shown)],
        rows,
        differs=lambda row: len(set(row[1:])) > 1,
    )


def _origin(run: RunFolder) -> dict[str, str]:
    facts = run.facts
    versions, devices = (
        found if isinstance(found := facts.get(name), dict) else {} for name in ("versions", "devices")
    )
    command = facts.get("command") or next((one["command"] for one in run.failures if one.get("command")), None)
    return {
        "command": shlex.join(map(str, command)) if isinstance(command, list) else NOT_KNOWN,
        "in": str(facts.get("folder") or NOT_KNOWN),
        "began": clock(facts.get("began")),
        "launcher": str(facts.get("launcher") or NOT_KNOWN),
        "backend": str(facts.get("backend") or NOT_KNOWN),
        "devices": ", ".join(f"{number} × {name}" for name, number in devices.items()) or NOT_KNOWN,
        **{name: str(versions.get(name) or NOT_KNOWN) for name in ("runner", "python", "torch")},
    }
