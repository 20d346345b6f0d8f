"""A schema registry for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.schema_registry import FakeRegistry, running


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    """Run a schema registry."""
    with running() as registry:
        yield registry
