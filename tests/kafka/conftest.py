"""An empty root, a small partition, and a clock whose sleep takes no time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparklog.log.journal.clocks import Env
from sparklog.log.topic.root import Root
from sparklog.testing.world import World
from tests.kafka.logs import FIRST, HOUR_MS, write_partition


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_partition(tmp_path, "t-0", {0: FIRST})


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def env(waits: list[float]) -> Env:
    """An environment in which sleeping takes no time.

    Its clock is far ahead, so no directory seems to have changed recently.
    """
    return Env(lambda: 2 * HOUR_MS, lambda: 0, waits.append, random.Random(1))


@pytest.fixture
def root() -> Root:
    """Return an empty root in memory."""
    return World().root()
