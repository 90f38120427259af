"""What the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.turns import Turns


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    """Jobs in which a file's workloads take turns."""
    jobs = Turns()
    yield jobs
    jobs.close()
