"""The hold by which a clone keeps the files that it shares: its name, and the test if it is still needed.

A clone's commit 0 names files in the folders of other topics. Before it, a hold named after the clone is committed in
each of these topics, so their vacuums keep what the held version names, also once the topic is deleted. Release is
automatic: the vacuum of the topic that owns the files looks into the clone's log, and ends the hold once no version of
the clone that may still be read names a file of that topic.

Until `expiresMs` of the hold the clone may not be there yet, so it is not looked for. Before the vacuum ends the hold
of a clone that is not there, it commits to the log of the clone's name (see `GiveUpIntent`): a process that has slept
since it took the hold expects that log as it was then, and creates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sparklog.log.journal.names import is_topic_name
from sparklog.log.state.commit import CREATE, MAINTAIN, Hold
from sparklog.log.state.commit_intents import Draft, Nothing
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.topic_state import Head

GRACE_MS = 86_400_000
"""How long a clone's hold stays without a clone: the process that was to create it has died."""
_PREFIX = "clone"
_GIVEN_UP = "given-up"


def clone_hold(clone: str, topic_id: str) -> str:
    """Return the name of a clone's hold; topic names have no colon."""
    return f"{_PREFIX}:{clone}:{topic_id}"


def clone_of_hold(hold: str) -> tuple[str, str] | None:
    """Return name and topic id of the clone whose hold has this name, None for any other hold."""
    prefix, _, rest = hold.partition(":")
    name, colon, topic_id = rest.partition(":")
    return (name, topic_id) if prefix == _PREFIX and colon and is_topic_name(name) else None


@dataclass(frozen=True, slots=True)
class GiveUpIntent:
    """Commit to the log of a name, so that this clone cannot be created; an empty log gets a topic to be deleted."""

    topic_id: str
    now_ms: int
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, head: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        if head.exists or head.topic_id == self.topic_id:
            return Nothing("nothing changes", head.version)
        record = {f"{_GIVEN_UP}:{self.topic_id}": Hold(max(head.version, 0), self.now_ms)}
        if head.version < 0:
            return Draft(CREATE, topic_id=self.topic_id, leader_epoch=0, partitions=1, holds=record)
        return Draft(MAINTAIN, holds=record)


def is_given_up(head: Head, topic_id: str) -> bool:
    """True if a name's log says that no clone with this topic id will come."""
    return f"{_GIVEN_UP}:{topic_id}" in head.holds


def still_names(history: History, topic_id: str, owner: str, since: int, versions: set[int], newest: int) -> bool:
    """True if a clone names a file of `owner` at version `since` or later up to `newest`, or at one of `versions`.

    What had its name before and after (another `topic_id`) is not asked. `NotFound` or `Corrupt` if it cannot be told.
    """

    def has_any(of: str, paths: Iterable[str]) -> bool:
        return of == topic_id and any(path.startswith(f"/{owner}/") for path in paths)

    for version in [*sorted(number for number in versions if number < since), since]:
        snapshot = history.at(version)
        if has_any(snapshot.head.topic_id, snapshot.slices.paths()):
            return True
    return any(
        commit.op == CREATE and has_any(commit.topic_id, (file.path for file in commit.files))
        for _, commit in history.walk(snapshot.head, newest)
    )
