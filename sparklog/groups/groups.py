"""The consumer groups of a root."""

from __future__ import annotations

import logging
import os

from sparklog.errors import SparklogError
from sparklog.groups.group import Group
from sparklog.groups.state import GROUPS
from sparklog.log.entry_collect import ids_of
from sparklog.log.root import Root, open_root
from sparklog.storage.store import Store

__all__ = ["Groups"]

_LOG = logging.getLogger("sparklog.groups")


class Groups:
    """The groups of `root`: an open root, or where one is."""

    def __init__(self, root: Root | Store | str | os.PathLike[str]) -> None:
        self.root = root if isinstance(root, Root) else open_root(root)

    def __repr__(self) -> str:
        return f"Groups({self.root.location!r})"

    def names(self) -> list[str]:
        """Names of all groups, sorted. Costs a few requests per group; one that cannot be read is warned of."""
        damaged: list[SparklogError] = []
        found = [name for name in ids_of(self.root.store, GROUPS, damaged) if self._exists(name, damaged)]
        for error in damaged:
            _LOG.warning("a group cannot be read: %s", error)
        return sorted(found)

    def group(self, name: str) -> Group:
        """The group of this name, which may not exist yet; `BadRequest` for no name."""
        return Group(self.root, name)

    def _exists(self, name: str, damaged: list[SparklogError]) -> bool:
        try:
            return self.root.entries(GROUPS, name).refresh().exists
        except SparklogError as error:
            damaged.append(error)
            return False
