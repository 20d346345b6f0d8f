"""Consumer groups: their committed offsets, kept in the root.

`group` is a group and its members, `groups` all of a root, `consumer` reads topics as a member, `lag` is consumer lag;
`state` has the entries of a group's journal and the steps from one to the next, `offsets` the tables in them.
Transactions commit offsets of groups too (`sparklog.transactions`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.groups.consumer import Consumer
    from sparklog.groups.group import Group, GroupDescription, Membership
    from sparklog.groups.groups import Groups
    from sparklog.groups.offsets import CommittedOffset, GroupMetadata, OffsetAndMetadata

_HOME = {
    "CommittedOffset": "offsets",
    "Consumer": "consumer",
    "Group": "group",
    "GroupDescription": "group",
    "GroupMetadata": "offsets",
    "Groups": "groups",
    "Membership": "group",
    "OffsetAndMetadata": "offsets",
}
__all__ = [
    "CommittedOffset",
    "Consumer",
    "Group",
    "GroupDescription",
    "GroupMetadata",
    "Groups",
    "Membership",
    "OffsetAndMetadata",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'sparklog.groups' has no attribute {name!r}")
    return getattr(import_module(f"sparklog.groups.{_HOME[name]}"), name)
