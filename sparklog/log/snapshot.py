"""A topic at one version: what planning a read starts from."""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.log.head import Head
from sparklog.log.slice_table import SliceTable
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
