"""A topic at one version: what planning a read starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.topic_state import Head
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A topic at one version: its head and all its slices."""

    topic: str
    store: Store
    head: Head
    slices: SliceTable

    @property
    def version(self) -> int:
        return self.head.version


Newer: TypeAlias = Callable[[], Snapshot]
"""Takes the topic's newest state as readers see it: called where a file that a snapshot names is gone."""
