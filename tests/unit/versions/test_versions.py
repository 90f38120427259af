"""The page on versions says what the runner refuses."""

from __future__ import annotations

import re

from runner.versions.features import FEATURES, RUNNER, number_of
from tests.launching import ROOT


def test_the_page_has_the_table_of_floors() -> None:
    page = (ROOT / "docs" / "site" / "versions.md").read_text()
    rows = re.findall(r"^\| (.+) \| (\d+\.\d+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(one.name, number_of(one.floor), one.reason) for key, one in FEATURES.items() if key != RUNNER]
