"""What the tests of a file share."""

from __future__ import annotations

from tests.turns import turns_fixture

turns = turns_fixture("module")
