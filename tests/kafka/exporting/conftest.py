"""The broker that takes exports in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_broker import Broker
from tests.kafka_tools import Missing


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """One that was started once and has an empty log dir."""
    try:
        found = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield found
    finally:
        found.stop()
