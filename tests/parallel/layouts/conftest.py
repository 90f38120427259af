"""What the tests of models that are divided share: their jobs import the same parts of torch, which takes them the most time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.turns import Turns


@pytest.fixture(scope="package")
def turns() -> Iterator[Turns]:
    """Jobs in which the folder's workloads take turns."""
    jobs = Turns()
    yield jobs
    jobs.close()
