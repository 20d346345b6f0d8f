"""Run compiled kernels in tests of the format, except in those that compare them with interpreted ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kernel_ways import compiled


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    with compiled():
        yield
