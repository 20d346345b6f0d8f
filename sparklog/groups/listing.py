"""The consumer groups of a root."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparklog.errors import SparklogError
from sparklog.groups.group import Group, GroupDescription
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.journal.journal_cleanup import ids_of
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.locks import read_each
from sparklog.storage.store import Store


class Groups:
    """Consumer groups of a root: an open one, or the path of one.

    Example:
        groups = sparklog.Groups("/data/log")
        for name in groups.names():
            print(name, groups.group(name).committed())
    """

    def __init__(self, root: Root | Store | str | os.PathLike[str]) -> None:
        self.root = root if isinstance(root, Root) else open_root(root)

    def __repr__(self) -> str:
        return f"Groups({self.root.location!r})"

    def names(self, failures: list[SparklogError] | None = None) -> list[str]:
        """Return the names of all groups, sorted; costs a few requests per group.

        A group that cannot be read is left out and its error put into `failures`, or raised.
        """
        names = sorted(ids_of(self.root.store, GROUPS, failures))
        states = read_each(self.root.store, lambda name: self.root.entries(GROUPS, name).refresh(), names, failures)
        return [name for name, state in states.items() if state.exists]

    def descriptions(
        self, names: Sequence[str], failures: list[SparklogError] | None = None
    ) -> dict[str, GroupDescription]:
        """Return members, offsets and state of these groups, by name; `failures`: see `names`."""
        return read_each(self.root.store, lambda name: self.group(name).description(), names, failures)

    def states(self, names: Sequence[str], failures: list[SparklogError] | None = None) -> dict[str, GroupState]:
        """Return the states of these groups as readers see them, by name; `failures`: see `names`."""
        return read_each(self.root.store, lambda name: self.group(name).state(), names, failures)

    def group(self, name: str) -> Group:
        """Return the group of this name, which may not exist yet. `BadRequest` for no name."""
        return Group(self.root, name)
