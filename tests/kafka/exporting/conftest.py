"""The broker that opens exports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_broker import Broker
from tests.kafka_tools import Missing


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker once, with an empty log directory."""
    try:
        found = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield found
    finally:
        found.stop()
