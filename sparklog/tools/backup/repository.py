"""The repository with the backups of a root, the backup numbers, and the marks of active runs.

    _backup.json                       the id of the root whose backups are in the repository
    _backups/00000000000000000003.json backup 3; written last, so unfinished backups are invisible
    _backups/begun/<number>.json       a number that a run has claimed
    _backups/running/<id>-<n>.json     the mark of an active run, which is a backup or a prune
    <topic>/..., _transactions/..., _groups/...   objects with the same keys as in a root

**Numbers.** Backups are numbered in the order of their cuts, and each number is decided once:

1. A run reads the latest number, takes its cut, and claims the next number by creating `_backups/begun/<number>.json`.
   If another run has already claimed the number, the run determines a new cut. Therefore a run starts to determine its
   cut after the cut of the previous backup is complete, even if the backups are copied concurrently.
2. Creating `_backups/<number>.json` decides the number. The run writes a manifest. If a prune considers the run dead,
   the prune writes an object which states that the number is abandoned. Only the first write succeeds, so a run that
   was paused while a prune deleted its files cannot publish its backup.

**Marks.** A backup relies on objects that other runs have copied, and a prune deletes objects that no backup
references, so a backup and a prune must not run concurrently. Each run first writes its mark, then lists the marks of
all runs, and stops if the mark of a conflicting run exists. A mark is valid for six hours according to the store's
clock, and is renewed by its run. A run stops if its own mark is missing or may have expired. Marks and manifests are
found by listings, so listings must be up to date. The listings of S3, Azure, Google Cloud Storage and HDFS are up to
date. An NFS client may cache outdated listings. Therefore, if the repository is on NFS, run a prune on the same host as
the backups.

**Pruning.** A backup requires its cut and all versions since the cut of the previous backup. The commits, files,
checkpoints and entries of these versions are retained until the backup is deleted. A prune deletes manifests first, so
that every visible backup is complete. It then deletes all objects that a backup may have written and that no remaining
backup references, including objects of dead runs. Other files are not deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, SparklogError
from sparklog.format.checksums import SUFFIXES
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.create_object import create_or_read, read_if_there
from sparklog.log.journal.documents import FORMAT
from sparklog.log.state.history import History
from sparklog.log.topic.backup_manifest import (
    ABANDONED_BACKUP_JSON,
    BACKUPS_FOLDER,
    REPOSITORY_JSON,
    AbandonedBackup,
    Manifest,
    backup_key,
    backup_numbers,
    read_manifest,
)
from sparklog.log.topic.inventory import files_of_versions, start_at
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage import LocalStore
from sparklog.storage.store import ObjectInfo, Store

CLAIMS_FOLDER = f"{BACKUPS_FOLDER}/begun"
RUNNING_FOLDER = f"{BACKUPS_FOLDER}/running"
MARK_MS = 6 * 3_600_000
BACKUP, PRUNE = "backup", "prune"


def claim_key(number: int) -> str:
    return f"{CLAIMS_FOLDER}/{number:020d}.json"


def latest_number(store: Store) -> int:
    # List claims first, because a run creates the manifest before it deletes its claim.
    claimed = naming.numbers_below(store, f"{CLAIMS_FOLDER}/")
    return max([0, *claimed, *backup_numbers(store)])


def claim_number(store: Store, number: int, run: str, env: Env) -> bool:
    """Claim a number for a run. Return False if another run has claimed the number."""
    data = json_fields.encode({"format": FORMAT, "readFeatures": [], "id": run})
    is_claimed = create_or_read(store, claim_key(number), data, env) in (None, data)
    return is_claimed and store.stat(backup_key(number)) is None


def abandon_claims(store: Store, root_id: str, env: Env) -> None:
    """Abandon all claimed numbers, so that runs that are dead or paused can no longer publish their backups."""
    for number in naming.numbers_below(store, f"{CLAIMS_FOLDER}/"):
        create_or_read(
            store,
            backup_key(number),
            ABANDONED_BACKUP_JSON.encode(AbandonedBackup(number, root_id, env.wall_ms())),
            env,
        )
        store.delete(claim_key(number))


def is_repository(store: Store) -> bool:
    return store.stat(naming.REPOSITORY_KEY) is not None


def reject_nested(store: Store) -> None:
    """Raise `BadRequest` if a directory is inside a root or repository, because the cleanup of the root or repository
    might delete files in the directory.
    """
    if not isinstance(store, LocalStore):
        return
    folder = os.path.realpath(store.location)
    while (above := os.path.dirname(folder)) != folder:
        folder = above
        for key, what in ((naming.ROOT_KEY, "a root"), (naming.REPOSITORY_KEY, "a backup repository")):
            if os.path.lexists(os.path.join(folder, key)):
                raise BadRequest(f"{store.location} is inside {folder}, which is {what}; choose another directory")


@dataclass
class Repository:
    """An open repository. `root_id` is the id of the root whose backups are in the repository."""

    store: Store
    root_id: str

    @classmethod
    def open(cls, store: Store) -> Repository:
        """Open an existing repository. Raises `NotFound` if the repository does not exist."""
        data = read_if_there(store, naming.REPOSITORY_KEY)
        if data is None:
            raise NotFound(
                f"{store.location} is not a backup repository, because it has no {naming.REPOSITORY_KEY}; "
                "check the path"
            )
        return cls(store, REPOSITORY_JSON.decode(data, naming.REPOSITORY_KEY).root_id)

    @classmethod
    def open_or_create(cls, store: Store, root_id: str, env: Env) -> Repository:
        """Open the repository for backups of a root, or create it.

        Raises `BadRequest` if the location is a root, or contains other files or backups of another root.
        """
        from sparklog.log.journal.probe_results import ensure_probed

        if not is_repository(store):
            if store.stat(naming.ROOT_KEY) is not None:
                raise BadRequest(f"{store.location} is a root; use a separate directory for backups")
            reject_nested(store)
            first = naming.foreign_name(store)
            # A concurrent first backup may have created the repository.
            if first is not None and not is_repository(store):
                raise BadRequest(f"{store.location} is not empty, found {first}; use a separate directory for backups")
            ensure_probed(store, env.wall_ms)
            create_or_read(
                store, naming.REPOSITORY_KEY, REPOSITORY_JSON.encode(naming.RootId(root_id, env.wall_ms())), env
            )
        repository = cls.open(store)
        if repository.root_id != root_id:
            raise BadRequest(
                f"{store.location} has backups of root {repository.root_id}, but this root has id {root_id}; a "
                "restored root gets a new id, so back it up to a separate directory"
            )
        ensure_probed(store, env.wall_ms)
        return repository

    def manifests(self) -> list[Manifest]:
        """Return the manifests of all backups in the order of their cuts. Raises `Corrupt` if a manifest is corrupt."""
        manifests = [read_manifest(self.store, number) for number in backup_numbers(self.store)]
        return [manifest for manifest in manifests if manifest is not None]

    def covering(self, topics: Collection[str] | None) -> list[Manifest]:
        """Return the backups that include these topics, or all backups if no backup includes these topics. If `topics`
        is None, return the backups that include all topics.

        Raises `NotFound` if the repository does not contain a complete backup.
        """
        finished = self._finished()
        return [manifest for manifest in finished if manifest.covers(topics)] or finished

    def _finished(self) -> list[Manifest]:
        finished = self.manifests()
        if not finished:
            raise NotFound(f"{self.store.location} has no finished backup; run sparklog backup")
        return finished

    def find(self, number: int | None, topics: Collection[str] | None = None) -> Manifest:
        """Return the backup with a number, or the latest backup that includes these topics if the number is None."""
        if number is None:
            return self.covering(topics)[-1]
        finished = self._finished()
        for manifest in finished:
            if manifest.number == number:
                return manifest
        numbers = ", ".join(str(manifest.number) for manifest in finished)
        raise NotFound(f"backup {number} does not exist in {self.store.location}; existing backups: {numbers}")


@dataclass
class Mark:
    """The mark of a run in a repository. This class is a context manager, and deletes the mark on exit."""

    repository: Repository
    env: Env
    kind: str
    keys: list[str] = field(default_factory=list)
    since_ms: int = 0

    def __enter__(self) -> Mark:
        self.since_ms = self.repository.store.now_ms()
        self._id = self.env.new_id()
        try:
            self._create()
            self._reject_others()
        except BaseException:
            # `__exit__` is not called, and the mark would block other runs for six hours.
            with suppress(SparklogError, OSError):
                self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def check(self) -> None:
        """Check and renew the mark before a step that must not overlap with other runs.

        Raises `Conflict` if the mark may have expired.
        """
        now_ms = self.repository.store.now_ms()
        if now_ms - self.since_ms > MARK_MS // 2 or self.repository.store.stat(self.keys[-1]) is None:
            location = self.repository.store.location
            raise Conflict(f"this {self.kind} in {location} was paused for too long; run it again")
        if now_ms - self.since_ms > MARK_MS // 8:
            self._create()
            self.since_ms = now_ms

    def _reject_others(self) -> None:
        marks = self._others(self.since_ms)
        others = [key for key in marks if PRUNE in (self.kind, key.rsplit("/", 1)[-1].split("-", 1)[0])]
        if others:
            what = "a prune is running" if self.kind == BACKUP else "a backup or another prune is running"
            location = self.repository.store.location
            raise Conflict(
                f"{what} in {location} ({others[0]}); wait until it ends, or for six hours if the process is dead"
            )

    def _create(self) -> None:
        key = f"{RUNNING_FOLDER}/{self.kind}-{self._id}-{len(self.keys)}.json"
        mark = json_fields.encode({"format": FORMAT, "readFeatures": []})
        # If the request fails, the mark may exist nevertheless, and must be deleted on exit.
        self.keys.append(key)
        create_or_read(self.repository.store, key, mark, self.env)

    def _remove(self) -> None:
        for key in self.keys:
            self.repository.store.delete(key)

    def _others(self, now_ms: int) -> Sequence[str]:
        marks = []
        for info in self.repository.store.list(f"{RUNNING_FOLDER}/"):
            if info.key in self.keys:
                continue
            if now_ms - info.modified_ms <= MARK_MS:
                marks.append(info.key)
            elif self.kind == PRUNE:
                # The run is dead, or will stop because its mark is missing.
                self.repository.store.delete(info.key)
        return marks


_LOG = re.compile(
    rf"(?:[^/]+|(?:{naming.TRANSACTIONS_FOLDER}|{naming.GROUPS_FOLDER})/[^/]+)/_log/"
    r"(?:[0-9]{20}\.json|checkpoints/[0-9]{20}(?:\.json|-[A-Za-z0-9_-]{1,64}\.arrow))"
)
DELETE_BATCH = 200
"""Number of deletions between two checks of the run's mark."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a prune: the backup numbers that were retained and dropped, and the number of deleted objects and
    bytes. After a dry run, nothing has been deleted.
    """

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    objects: int
    nbytes: int


def prune(
    target: Store, *, keep: int | None = None, keep_ms: int | None = None, dry_run: bool = False, env: Env = SYSTEM
) -> Pruned:
    """Drop all backups except the latest `keep` backups and backups that were completed in the last `keep_ms`.

    The latest backup is always retained. An older backup is dropped only if enough later backups include all its
    topics.

    Raises:
        BadRequest: If neither `keep` nor `keep_ms` is given, or if a value is out of range.
        Conflict: If a backup is running.
        Corrupt: If the objects that a backup needs cannot be determined. Nothing is deleted.
    """
    repository = Repository.open(target)
    if keep is None and keep_ms is None:
        raise BadRequest("expected the number of backups to keep or the time to keep backups")
    if (keep is not None and keep < 1) or (keep_ms is not None and keep_ms < 0):
        raise BadRequest(f"expected to keep at least 1 backup for at least 0 ms, found {keep} and {keep_ms} ms")
    if dry_run:
        return _plan(repository, keep, keep_ms, env).pruned
    with Mark(repository, env, PRUNE) as mark:
        # From now on, earlier runs cannot publish a backup, so objects that only these runs have copied can be deleted.
        abandon_claims(target, repository.root_id, env)
        plan = _plan(repository, keep, keep_ms, env)
        # Delete manifests first, so that every visible backup is complete.
        for keys in ([backup_key(manifest.number) for manifest in plan.dropped], [info.key for info in plan.deletions]):
            for start in range(0, len(keys), DELETE_BATCH):
                mark.check()
                target.delete_many(keys[start : start + DELETE_BATCH])
    return plan.pruned


class PrunePlan(NamedTuple):
    """The result of a prune, the backups to drop, and the objects to delete."""

    pruned: Pruned
    dropped: list[Manifest]
    deletions: list[ObjectInfo]


def _plan(repository: Repository, keep: int | None, keep_ms: int | None, env: Env) -> PrunePlan:
    manifests = repository.manifests()
    since = None if keep_ms is None else env.wall_ms() - keep_ms
    kept = [
        manifest
        for i, manifest in enumerate(manifests)
        if (since is not None and manifest.completed_ms >= since)
        # A backup of selected topics does not replace a backup of all topics.
        or sum(_includes_topics_of(later, manifest) for later in manifests[i + 1 :]) < (keep or 1)
    ]
    dropped = [manifest for manifest in manifests if manifest not in kept]
    needed: set[str] = set()
    for manifest in kept:
        needed |= needed_keys(repository.store, manifest)
    # Delete only objects that a backup may have written.
    deletions = [
        info
        for info in repository.store.list("")
        if info.key not in needed and (_LOG.fullmatch(info.key) is not None or data_file(info) is not None)
    ]
    pruned = Pruned(
        kept=tuple(manifest.number for manifest in kept),
        dropped=tuple(manifest.number for manifest in dropped),
        objects=len(deletions) + len(dropped),
        nbytes=sum(info.size for info in deletions),
    )
    return PrunePlan(pruned, dropped, deletions)


def _includes_topics_of(later: Manifest, older: Manifest) -> bool:
    return later.only is None or (older.only is not None and set(older.only) <= set(later.only))


def needed_keys(store: Store, manifest: Manifest) -> set[str]:
    """Return the keys of all objects that a backup references, except the manifest.

    Raises `Corrupt` or `NotFound` if the logs of the backup are incomplete.
    """
    keys: set[str] = set()
    for backup in manifest.topics:
        topic = backup.topic
        history = History(store, topic)
        files = files_of_versions(history, start_at(history, backup.base), backup.version)
        if files.last.state.crc != backup.crc:
            raise Corrupt(
                f"version {backup.version} of topic '{topic}' has CRC-32C {files.last.state.crc}, but backup "
                f"{manifest.number} has {backup.crc}; nothing was deleted"
            )
        keys |= {naming.commit_key(topic, version) for version in range(backup.base + 1, backup.version + 1)}
        for version in {backup.base, backup.version} - {-1}:
            table = history.table_of(version)
            if table is None:
                raise Corrupt(f"checkpoint {version} of topic '{topic}' is corrupt; nothing was deleted")
            keys |= {naming.checkpoint_key(topic, version), table}
        keys |= files.files.keys()
        stems = [key.removesuffix("log") for key in files.files if key.endswith(".log")]
        keys |= {f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES}
        keys |= {naming.filter_path(key) for key in files.files}
    for prefix, entries in manifest.journals().items():
        keys |= {naming.commit_key(prefix, number) for number in range(entries.first, entries.number + 1)}
    return keys
