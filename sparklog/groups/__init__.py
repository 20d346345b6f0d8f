"""Consumer groups: their committed offsets, kept in the root.

`group` is a group and its members, `groups` all of a root, `consumer` reads topics as a member, `lag` is consumer lag;
`state` has the entries of a group's journal and the steps from one to the next, `offsets` the tables in them.
Transactions commit offsets of groups too (`sparklog.transactions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.lazy import lazy_names

if TYPE_CHECKING:
    from sparklog.groups.consumer import Consumer
    from sparklog.groups.group import Group, GroupDescription, Membership
    from sparklog.groups.lag import Groups
    from sparklog.groups.offsets import CommittedOffset, GroupMetadata, OffsetAndMetadata

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

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "sparklog.groups.consumer": "Consumer",
            "sparklog.groups.group": "Group GroupDescription Membership",
            "sparklog.groups.lag": "Groups",
            "sparklog.groups.offsets": "CommittedOffset GroupMetadata OffsetAndMetadata",
        },
    )
