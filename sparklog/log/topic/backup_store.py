"""A backup as a root that is only read: the store that `open_root` opens in a place of backups.

A place of backups has all that its backups name, under the keys that it has in a root, and what other backups and a run
at work have copied. This store shows what one backup has:

* `_root.json` is the place's `_backup.json`, which has the same members.
* The journal of a topic, a group or an id ends where the backup says; one that it does not have is not there.
* The last entry of a group or an id is its checkpoint as well: a place of backups need not have the first ones.
* Data files are all there: only commits name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import merge
from typing import TypeVar

from sparklog.errors import BadRequest, NotFound
from sparklog.log.journal.names import (
    LOG_FOLDER,
    PLACE_KEY,
    ROOT_KEY,
    checkpoint_key,
    commit_key,
    entry_number,
    groups_prefix,
    is_topic_name,
    transactions_prefix,
)
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.log.topic.backup_manifest import Manifest, backup_numbers, read_manifest
from sparklog.storage.store import ObjectInfo, Store, not_there
from sparklog.storage.wrapper_store import WrapperStore

T = TypeVar("T")
READS = ("get", "stat", "list", "list_folders", "now_ms")


def newest_backup(store: Store) -> BackupStore | None:
    """Return the newest backup, best of all topics; None: no place of backups. `NotFound` where none is finished."""
    if store.stat(PLACE_KEY) is None:
        return None
    newest: Manifest | None = None
    for number in reversed(backup_numbers(store)):
        manifest = read_manifest(store, number)
        if manifest is not None and manifest.only is None:
            return BackupStore(store, manifest)
        newest = newest or manifest
    if newest is None:
        raise NotFound(f"there is no finished backup in {store.location} yet; run sparklog backup")
    return BackupStore(store, newest)


def one_backup(store: Store, number: int) -> BackupStore:
    """Return a backup by its number. `NotFound` if there is none."""
    manifest = read_manifest(store, number)
    if manifest is None:
        raise NotFound(f"there is no backup {number} in {store.location}; `sparklog backup --list` has all")
    return BackupStore(store, manifest)


class BackupStore(WrapperStore):
    """See the module. `inner`: the place of backups."""

    needs_probe = False
    writable = False

    def __init__(self, inner: Store, manifest: Manifest) -> None:
        super().__init__(inner)
        entries = {groups_prefix(item.id): item.number for item in manifest.groups}
        entries |= {transactions_prefix(item.id): item.number for item in manifest.decisions}
        entries |= {DEFAULTS.prefix(item.id): item.number for item in manifest.defaults}
        self._ends = {item.topic: item.version for item in manifest.topics} | entries
        self._copies = {checkpoint_key(*entry): commit_key(*entry) for entry in entries.items()} | {ROOT_KEY: PLACE_KEY}

    def request(self, verb: str, key: str, send: Callable[[], T]) -> T:
        if verb not in READS:
            raise BadRequest(
                f"{self.location} is a place of backups, which is only read: `sparklog restore` makes a root"
            )
        return send()

    def _has(self, key: str) -> bool:
        """Return True unless the key is of a journal, and beyond its end in the backup."""
        prefix, journal, name = key.rpartition(f"/{LOG_FOLDER}/")
        number = entry_number(name) if journal else None
        return number is None or number <= self._ends.get(prefix, -1)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        # From a later position on: records in a commit that a clone of its topic names, whatever that topic ends at.
        if start == 0 and not self._has(key):
            raise not_there(f"{key} in this backup")
        return self.inner.get(self._copies.get(key, key), start, length)

    def stat(self, key: str) -> ObjectInfo | None:
        info = self.inner.stat(self._copies.get(key, key)) if self._has(key) else None
        return None if info is None else replace(info, key=key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        copies = sorted(key for key in self._copies if key.startswith(prefix) and key > after)
        stored = (info for info in self.inner.list(prefix, after) if self._has(info.key) and info.key not in copies)
        return merge(stored, filter(None, map(self.stat, copies)), key=lambda info: info.key)

    def list_folders(self, prefix: str) -> Iterator[str]:
        for name in self.inner.list_folders(prefix):
            if prefix or name in self._ends or not is_topic_name(name):
                yield name
