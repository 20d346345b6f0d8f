"""Say that a store has lost what it had acknowledged, and keep a note of it.

A commit rests on one promise: of those who create a number, exactly one is told that it has. A store that breaks it
after it was probed tells two. One of them then goes on from a commit that is not there. What this process has created
it remembers, and what it reads next contradicts it: another object under that number, or a follower that was made after
another one. A root that was moved away and restored under a living process looks the same: the store is probed again.

Where the probe fails too, the commit that is gone is noted in the root, as `_probe/lost-<hash>.json`, for nothing
else tells of it: `sparklog verify` names it. The note may be deleted once its records were written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound, SparklogError
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.documents import TEXT, Member, StoredDocument, members, peek_commit_id, whole
from sparklog.log.journal.probe_verdict import doubt
from sparklog.storage.store import PROBE_FOLDER, Store

LEAVE = (
    "acknowledged commits may be lost: stop all that write to this root, run sparklog verify, and go on in another "
    "store, or in this one once sparklog doctor passes"
)
_PREFIX = f"{PROBE_FOLDER}/lost-"
_NOTE = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}\.json")


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit or entry that a process was told it had created under `key`, and that is not there."""

    key: str
    commit_id: str
    noted_ms: int


LOST_JSON = StoredDocument(
    "note of a lost commit",
    LostCommit,
    *members(TEXT, "key", "commitId"),
    Member("notedMs", whole(0)),
)


def is_note(key: str) -> bool:
    return _NOTE.fullmatch(key) is not None


def lost_commits(store: Store) -> Iterator[tuple[str, LostCommit]]:
    """Yield the notes of a root with their keys, unless the commit is there or the note cannot be read."""
    for info in store.list(_PREFIX):
        if not is_note(info.key):
            continue
        with suppress(NotFound, Corrupt, BadRequest):
            lost = LOST_JSON.decode(store.get(info.key), info.key)
            data = read_if_there(store, lost.key)
            if data is None or peek_commit_id(data) != lost.commit_id:
                yield info.key, lost


def contradiction(store: Store, env: Env, what: str, lost: tuple[str, str] | None) -> Fenced | None:
    """Probe a store that contradicts `what` is known; return its error. `lost`: key and id of a commit that is gone."""
    broken = doubt(store, env.wall_ms)
    if broken is None:
        return None
    if lost is not None:
        note = LostCommit(*lost, env.wall_ms())
        name = hashlib.sha256(f"{note.key}\n{note.commit_id}".encode()).hexdigest()[:16]
        with suppress(SparklogError):  # the error says it, too
            store.create(f"{_PREFIX}{name}.json", LOST_JSON.encode(note))
    return Fenced(
        f"{store.location} does not keep its promise, that of all who create one object exactly one is told so: "
        f"{what}; {LEAVE} ({broken})"
    )
