"""Drop old backups, and what only they named.

A backup names its cut, and the versions before it back to the cut of the backup before: those commits, files,
checkpoints and entries stay as long as it does. Manifests go first, so that a backup is whole as long as it is seen.
Then all goes that a backup may have written and no backup left names, also what runs that died have copied. Other
files stay. No backup runs meanwhile (see `repository`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.checksums import SUFFIXES
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.journal.names import GROUPS_FOLDER, TRANSACTIONS_FOLDER, checkpoint_key, commit_key
from sparklog.log.state.history import History
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.backup.copying import files_named, start_at
from sparklog.tools.backup.manifest import Manifest
from sparklog.tools.backup.repository import PRUNE, Mark, Repository, backup_key, give_up_begun

_LOG = re.compile(
    rf"(?:[^/]+|(?:{TRANSACTIONS_FOLDER}|{GROUPS_FOLDER})/[^/]+)/_log/"
    r"(?:[0-9]{20}\.json|checkpoints/[0-9]{20}(?:\.json|-[A-Za-z0-9_-]{1,64}\.arrow))"
)
CHUNK = 200
"""Deletions between two looks at the own mark."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of backups kept and dropped; objects and bytes deleted (or, dry, to be)."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    objects: int
    nbytes: int


def prune(
    target: Store, *, keep: int | None = None, keep_ms: int | None = None, dry_run: bool = False, env: Env = SYSTEM
) -> Pruned:
    """Keep the newest `keep` backups and those completed within `keep_ms` of now; at least the newest one.

    Of each backup those count as newer that were asked for all of its topics.

    `BadRequest` without either; `Conflict` while a backup is at work; `Corrupt` if it cannot be told what is named.
    """
    repository = Repository.open(target)
    if keep is None and keep_ms is None:
        raise BadRequest("say how many backups to keep, or for how long")
    if (keep is not None and keep < 1) or (keep_ms is not None and keep_ms < 0):
        raise BadRequest("at least the newest backup is kept; expected 1 or more, and a time that is not negative")
    if dry_run:
        return _plan(repository, keep, keep_ms, env)[0]
    with Mark(repository, env, PRUNE) as mark:
        # From here on no run that is taken for dead can publish: what it copied may go.
        give_up_begun(target, repository.root_id, env.wall_ms())
        pruned, dropped, victims = _plan(repository, keep, keep_ms, env)
        keys = [backup_key(item.number) for item in dropped] + [info.key for info in victims]
        for start in range(0, len(keys), CHUNK):
            mark.check()
            for key in keys[start : start + CHUNK]:
                target.delete(key)
    return pruned


def _plan(
    repository: Repository, keep: int | None, keep_ms: int | None, env: Env
) -> tuple[Pruned, list[Manifest], list[ObjectInfo]]:
    manifests = repository.manifests()
    since = None if keep_ms is None else env.wall_ms() - keep_ms
    kept = []
    for i, item in enumerate(manifests):
        # A backup of some topics stands in for none of all topics.
        newer = sum(_asked_for_all_of(each, item) for each in manifests[i + 1 :])
        by_count = keep is not None and newer < keep
        by_time = since is not None and item.completed_ms >= since
        if by_count or by_time or newer == 0:
            kept.append(item)
    dropped = [item for item in manifests if item not in kept]
    named: set[str] = set()
    for item in kept:
        named |= named_keys(repository.store, item)
    victims = [info for info in repository.store.list("") if info.key not in named and _of_backups(info)]
    nbytes = sum(info.size for info in victims)
    numbers = tuple(item.number for item in kept), tuple(item.number for item in dropped)
    return Pruned(*numbers, len(victims) + len(dropped), nbytes), dropped, victims


def _asked_for_all_of(item: Manifest, older: Manifest) -> bool:
    return item.only is None or (older.only is not None and set(older.only) <= set(item.only))


def _of_backups(info: ObjectInfo) -> bool:
    """True if a backup may have written an object. Any other is not ours to delete."""
    return _LOG.fullmatch(info.key) is not None or data_file(info.key.partition("/")[0], info) is not None


def named_keys(store: Store, manifest: Manifest) -> set[str]:
    """Keys of all objects that a backup names, whether they are still there or not; not that of its manifest.

    `Corrupt` or `NotFound` if its logs are not whole.
    """
    keys: set[str] = set()
    for item in manifest.topics:
        history = History(store, item.topic)
        named = files_named(history, start_at(store, item.topic, history, item.base), item.version)
        if named.last.head.crc != item.crc:
            raise Corrupt(f"version {item.version} of topic '{item.topic}' is not what backup {manifest.number} says")
        keys |= {commit_key(item.topic, version) for version in range(item.base + 1, item.version + 1)}
        for version in {item.base, item.version} - {-1}:
            table = history.table_of(version)
            if table is None:
                raise Corrupt(f"checkpoint {version} of topic '{item.topic}' is damaged; nothing was deleted")
            keys |= {checkpoint_key(item.topic, version), table}
        keys |= _with_indexes(named.files)
    for kind, entries in ((DECISIONS, manifest.decisions), (GROUPS, manifest.groups)):
        for each in entries:
            prefix = kind.prefix(each.id)
            keys |= {commit_key(prefix, number) for number in range(each.first, each.number + 1)}
    return keys


def _with_indexes(files: Collection[str]) -> set[str]:
    beside = {f"{key.removesuffix('log')}{suffix}" for key in files if key.endswith(".log") for suffix in SUFFIXES}
    return {*files, *beside}
