"""Journals of entries (`sparklog.log.journal.entry_log`) for maintenance: their ids, and deletion of old entries."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.log.journal.entry_log import Entry, EntryKind, EntryLog
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, checkpoint_version, commit_key, id_folder
from sparklog.storage.local_writer import read_each
from sparklog.storage.store import Store

KEEP_MS = 7 * 86_400_000
"""An entry stays as long as a commit does, unless the caller has another time."""

E = TypeVar("E", bound=Entry)


def ids_of(store: Store, kind: EntryKind[E], failures: list[SparklogError] | None = None) -> list[str]:
    """Return the ids that have entries, from an entry of each folder. Errors are put into `failures`, or raised.

    A folder without an entry is left over from a journal that was collected.
    """

    folders = list(store.list_folders(f"{kind.folder}/"))
    ids = read_each(store, lambda folder: id_under(store, kind, f"{kind.folder}/{folder}"), folders, failures)
    return [id_ for folder, id_ in ids.items() if id_ is not None and id_folder(id_) == folder]


def id_under(store: Store, kind: EntryKind[E], prefix: str) -> str | None:
    """Return the id whose entries lie here, by the first one, or by a checkpoint where that is gone or damaged.

    None if there are none; `Corrupt` if all of these are damaged.
    """
    damage: Corrupt | None = None
    keys = [(commit_key(prefix, 0), 0)]
    heads = [(info.key, checkpoint_version(info.key)) for info in store.list(checkpoint_prefix(prefix))]
    for key, number in [*keys, *heads]:
        if number is None:
            continue
        try:
            return kind.decode(store.get(key), key, number).id
        except NotFound:
            continue
        except Corrupt as error:
            damage = error
    if damage is not None:
        raise damage
    return None


def entry_before(log: EntryLog[E], time_ms: int) -> E | None:
    """Return the newest entry written up to a time, by the store's clock; None if there is none."""
    number: int | None = None
    for info in log.store.list(f"{log.prefix}/_log/0"):
        if info.modified_ms > time_ms:
            break
        number = checkpoint_version(info.key)
    if number is None:
        return None
    key = log.key(number)
    try:
        return log.kind.decode(log.store.get(key), key, number)
    except NotFound:
        return None


def collect_log(log: EntryLog[E], now_ms: int, *, dry_run: bool) -> tuple[int, int]:
    """Delete a whole journal, if its newest object is a week old; return objects and bytes.

    The newest entry goes first: after a crash the rest is still listed, and old.
    """
    objects = list(log.store.list(f"{log.prefix}/_log/"))
    if not objects or now_ms - max(info.modified_ms for info in objects) < KEEP_MS:
        return 0, 0
    if not dry_run:
        for info in sorted(objects, key=lambda info: info.key, reverse=True):
            log.store.delete(info.key)
    return len(objects), sum(info.size for info in objects)


def collect_entries(
    log: EntryLog[E], now_ms: int, *, keep_ms: int = KEEP_MS, needed: int | None = None, dry_run: bool
) -> tuple[int, int]:
    """Delete entries and checkpoints below the second newest sound checkpoint; return objects and bytes.

    Each is deleted `keep_ms` after the next one was written, by the store's clock (`now_ms`): the newest at any time
    since then stays. So do entries from `needed` on.
    """
    sound: list[int] = []
    for number in reversed(log.checkpoints()):
        if log.read_checkpoint(number) is not None:
            sound.append(number)
        if len(sound) == 2:
            break
    if len(sound) < 2:
        return 0, 0
    lowest = sound[1]
    first = lowest if needed is None else min(lowest, needed)
    objects = nbytes = 0
    for prefix, limit in (
        # 20 digits hold every number with a zero in front, and so no checkpoint is listed with the entries.
        (f"{log.prefix}/_log/0", commit_key(log.prefix, first)),
        (checkpoint_prefix(log.prefix), checkpoint_key(log.prefix, lowest)),
    ):
        for info, newer in pairwise(log.store.list(prefix)):
            if info.key >= limit:
                break
            if now_ms - newer.modified_ms >= keep_ms:
                objects, nbytes = objects + 1, nbytes + info.size
                if not dry_run:
                    log.store.delete(info.key)
    return objects, nbytes
