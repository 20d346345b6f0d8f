"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixture_data import fixture_tree
from tests.kafka_tools import KafkaTools, Missing, find_tools


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """What Kafka wrote and what Kafka says about it: the tree described in its own README.md and in tests/FIXTURES.md.

    Shared by all tests and runs: never write into it (`fixture_data.copied` gives a copy to damage).
    """
    return fixture_tree()


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Kafka's own DumpLogSegments; skips where there is no Java or the jars cannot be fetched."""
    try:
        return find_tools()
    except Missing as missing:
        pytest.skip(str(missing))
