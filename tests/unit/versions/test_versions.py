"""The page on versions says what the runner refuses."""

from __future__ import annotations

import re

from runner.versions.features import FEATURES, RUNNER, number_of
from tests.launching import ROOT
from tests.versions import features


def test_the_page_has_the_table_of_floors() -> None:
    page = (ROOT / "docs" / "site" / "versions.md").read_text()
    floors = page.partition("## Floors")[2]
    rows = re.findall(r"^\| (.+) \| (\d+\.\d+) \| (.+) \|$", floors, re.MULTILINE)
    assert rows == [(one.name, number_of(one.floor), one.reason) for key, one in FEATURES.items() if key != RUNNER]


def test_the_table_of_sites_is_that_of_the_floors() -> None:
    page = (ROOT / "docs" / "site" / "versions.md").read_text()
    assert features() in page
