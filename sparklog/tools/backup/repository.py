"""The repository that holds the backups of one root, their numbers, and the runs that are at work in it.

    _backup.json                       whose backups are here
    _backups/00000000000000000003.json backup 3; created last, so what was not finished is not seen
    _backups/begun/<number>.json       a number that a run has taken
    _backups/running/<id>-<n>.json     a run at work: a backup, or a prune that deletes
    <topic>/..., _transactions/..., _groups/...   as in a root, under the same keys

**Numbers** follow the order of the cuts, and each is decided once. A run looks which number is the newest, takes its
cut, and creates `_backups/begun/<number>.json` for the next number. Where another run was quicker it takes a new cut.
So the cut of a backup begins after the cut of the one before it has ended, however long each of them copies.

A number is decided by the run that creates `_backups/<number>.json`. Its own run writes a manifest. A prune that takes
that run for dead writes that the number is given up. The first one counts, so a run that stood still until a prune had
taken its files away cannot publish what it made.

**Marks.** A backup relies on what is here, whichever run copied it; a prune deletes what no backup names. The two
must not meet: each first shows itself in `running`, then looks for the other, and gives way. A mark counts for six
hours by the store's clock, and its run renews it. A run stops if its own mark is gone, or may not have been renewed in
time. Marks and manifests are seen in listings, which must not be late: those of S3, Azure, Google and HDFS are not. A
client of NFS may remember older ones, so there a prune belongs on the machine that makes the backups.

**Pruning.** A backup names its cut, and the versions before it back to the cut of the backup before: those commits,
files, checkpoints and entries stay as long as it does. Manifests go first, so that a backup is whole as long as it is
seen. Then all goes that a backup may have written and no backup left names, also what runs that died have copied. Other
files stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.format.checksums import SUFFIXES
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.create_object import create_or_read, read_if_there
from sparklog.log.journal.documents import FORMAT
from sparklog.log.state.history import History
from sparklog.log.topic.backup_manifest import (
    BACKUPS_FOLDER,
    GIVEN_UP_JSON,
    REPOSITORY_JSON,
    GivenUp,
    Manifest,
    backup_key,
    backup_numbers,
    read_manifest,
)
from sparklog.log.topic.inventory import files_of_versions, start_at
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage import LocalStore
from sparklog.storage.store import ObjectInfo, Store

BEGUN_FOLDER = f"{BACKUPS_FOLDER}/begun"
RUNNING_FOLDER = f"{BACKUPS_FOLDER}/running"
MARK_MS = 6 * 3_600_000
BACKUP, PRUNE = "backup", "prune"


def begun_key(number: int) -> str:
    return f"{BEGUN_FOLDER}/{number:020d}.json"


def newest_number(store: Store) -> int:
    # In this order: a number is decided before its run lets go of it.
    begun = naming.numbers_below(store, f"{BEGUN_FOLDER}/")
    return max([0, *begun, *backup_numbers(store)])


def take_number(store: Store, number: int, run: str, env: Env) -> bool:
    """Take a number for a run; False if another run has it."""
    data = json_fields.encode({"format": FORMAT, "readFeatures": [], "id": run})
    taken = create_or_read(store, begun_key(number), data, env) in (None, data)
    return taken and store.stat(backup_key(number)) is None


def give_up_begun(store: Store, root_id: str, env: Env) -> None:
    """Decide all numbers that are taken: their runs are dead, or must not publish any more."""
    for number in naming.numbers_below(store, f"{BEGUN_FOLDER}/"):
        create_or_read(store, backup_key(number), GIVEN_UP_JSON.encode(GivenUp(number, root_id, env.wall_ms())), env)
        store.delete(begun_key(number))


def is_repository(store: Store) -> bool:
    return store.stat(naming.PLACE_KEY) is not None


def refuse_inside(store: Store) -> None:
    """`BadRequest` if a folder is in a root or in a repository: the two would take each other's files."""
    if not isinstance(store, LocalStore):
        return
    folder = os.path.realpath(store.location)
    while (above := os.path.dirname(folder)) != folder:
        folder = above
        for key, what in ((naming.ROOT_KEY, "a root"), (naming.PLACE_KEY, "a place of backups")):
            if os.path.lexists(os.path.join(folder, key)):
                raise BadRequest(f"{store.location} is in {folder}, which is {what}; choose a folder outside of it")


@dataclass
class Repository:
    """An open repository; `root_id` is that of the source of its backups."""

    store: Store
    root_id: str

    @classmethod
    def open(cls, store: Store) -> Repository:
        """`NotFound` if no backups are here."""
        data = read_if_there(store, naming.PLACE_KEY)
        if data is None:
            raise NotFound(f"no backups are in {store.location}: it has no {naming.PLACE_KEY}; check the path")
        return cls(store, REPOSITORY_JSON.decode(data, naming.PLACE_KEY).root_id)

    @classmethod
    def open_or_create(cls, store: Store, root_id: str, env: Env) -> Repository:
        """Open the repository for backups of a root, and make it if there is none.

        `BadRequest` if it is a root itself, holds something else, or the backups of another root.
        """
        from sparklog.log.journal.probe_results import ensure_probed

        if not is_repository(store):
            if store.stat(naming.ROOT_KEY) is not None:
                raise BadRequest(f"{store.location} is a root; give backups a folder of their own")
            refuse_inside(store)
            first = naming.foreign_name(store)
            # Another first backup may have been quicker.
            if first is not None and not is_repository(store):
                raise BadRequest(f"{store.location} is not empty, found {first}; give backups a folder of their own")
            ensure_probed(store, env.wall_ms)
            create_or_read(store, naming.PLACE_KEY, REPOSITORY_JSON.encode(naming.RootId(root_id, env.wall_ms())), env)
        repository = cls.open(store)
        if repository.root_id != root_id:
            raise BadRequest(
                f"{store.location} holds backups of root {repository.root_id}, found root {root_id}: a restored root "
                "is another one; give its backups a folder of their own"
            )
        ensure_probed(store, env.wall_ms)
        return repository

    def manifests(self) -> list[Manifest]:
        """All backups, in the order of their cuts, oldest first. `Corrupt` if one is damaged."""
        manifests = [read_manifest(self.store, number) for number in backup_numbers(self.store)]
        return [manifest for manifest in manifests if manifest is not None]

    def covering(self, topics: Collection[str] | None) -> list[Manifest]:
        """The backups that have these topics, None: everything; where there is none, all. `NotFound`: none at all."""
        finished = self._finished()
        return [item for item in finished if item.covers(topics)] or finished

    def _finished(self) -> list[Manifest]:
        finished = self.manifests()
        if not finished:
            raise NotFound(f"there is no finished backup in {self.store.location} yet; run sparklog backup")
        return finished

    def chosen(self, number: int | None, topics: Collection[str] | None = None) -> Manifest:
        """A backup by its number; None: the newest that has these topics. `NotFound`, saying which there are."""
        if number is None:
            return self.covering(topics)[-1]
        finished = self._finished()
        for item in finished:
            if item.number == number:
                return item
        numbers = ", ".join(str(item.number) for item in finished)
        raise NotFound(f"there is no backup {number} in {self.store.location}; there are {numbers}")


@dataclass
class Mark:
    """The mark of a run in a repository; it is there inside `with`."""

    repository: Repository
    env: Env
    kind: str
    keys: list[str] = field(default_factory=list)
    since_ms: int = 0

    def __enter__(self) -> Mark:
        self.since_ms = self.repository.store.now_ms()
        self._id = self.env.new_id()
        self._create()
        marks = self._others(self.since_ms)
        others = [key for key in marks if PRUNE in (self.kind, key.rsplit("/", 1)[-1].split("-", 1)[0])]
        if others:
            self._remove()
            what = "a prune is at work" if self.kind == BACKUP else "a backup or another prune is at work"
            location = self.repository.store.location
            raise Conflict(f"{what} in {location}; wait for its end, or six hours if it has died ({others[0]})")
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def check(self) -> None:
        """Before something that the other kind must not meet. `Conflict` if the mark may not have been seen."""
        now_ms = self.repository.store.now_ms()
        if now_ms - self.since_ms > MARK_MS // 2 or self.repository.store.stat(self.keys[-1]) is None:
            raise Conflict(f"this run stood still for too long in {self.repository.store.location}; run it again")
        if now_ms - self.since_ms > MARK_MS // 8:
            self._create()
            self.since_ms = now_ms

    def _create(self) -> None:
        key = f"{RUNNING_FOLDER}/{self.kind}-{self._id}-{len(self.keys)}.json"
        mark = json_fields.encode({"format": FORMAT, "readFeatures": []})
        create_or_read(self.repository.store, key, mark, self.env)
        self.keys.append(key)

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
                # Its run has died, or will find out that it must not go on.
                self.repository.store.delete(info.key)
        return marks


_LOG = re.compile(
    rf"(?:[^/]+|(?:{naming.TRANSACTIONS_FOLDER}|{naming.GROUPS_FOLDER})/[^/]+)/_log/"
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
        return _plan(repository, keep, keep_ms, env).pruned
    with Mark(repository, env, PRUNE) as mark:
        # From here on no run that is taken for dead can publish: what it copied may go.
        give_up_begun(target, repository.root_id, env)
        plan = _plan(repository, keep, keep_ms, env)
        # Manifests first: what they name may go once no backup is listed that needs it.
        for keys in ([backup_key(item.number) for item in plan.dropped], [info.key for info in plan.victims]):
            for start in range(0, len(keys), CHUNK):
                mark.check()
                target.delete_many(keys[start : start + CHUNK])
    return plan.pruned


class PrunePlan(NamedTuple):
    """A prune, the backups that it drops, and the objects that it deletes."""

    pruned: Pruned
    dropped: list[Manifest]
    victims: list[ObjectInfo]


def _plan(repository: Repository, keep: int | None, keep_ms: int | None, env: Env) -> PrunePlan:
    manifests = repository.manifests()
    since = None if keep_ms is None else env.wall_ms() - keep_ms
    kept = [
        item
        for i, item in enumerate(manifests)
        if (since is not None and item.completed_ms >= since)
        # A backup of some topics does not count for one of all topics.
        or sum(_asked_for_all_of(later, item) for later in manifests[i + 1 :]) < (keep or 1)
    ]
    dropped = [item for item in manifests if item not in kept]
    named: set[str] = set()
    for item in kept:
        named |= named_keys(repository.store, item)
    victims = [info for info in repository.store.list("") if info.key not in named and _of_backups(info)]
    nbytes = sum(info.size for info in victims)
    numbers = tuple(item.number for item in kept), tuple(item.number for item in dropped)
    return PrunePlan(Pruned(*numbers, len(victims) + len(dropped), nbytes), dropped, victims)


def _asked_for_all_of(item: Manifest, older: Manifest) -> bool:
    return item.only is None or (older.only is not None and set(older.only) <= set(item.only))


def _of_backups(info: ObjectInfo) -> bool:
    """True if a backup may have written the object; others are not deleted."""
    return _LOG.fullmatch(info.key) is not None or data_file(info) is not None


def named_keys(store: Store, manifest: Manifest) -> set[str]:
    """Keys of all objects that a backup names, whether they are still there or not; not that of its manifest.

    `Corrupt` or `NotFound` if its logs are not whole.
    """
    keys: set[str] = set()
    for item in manifest.topics:
        history = History(store, item.topic)
        named = files_of_versions(history, start_at(history, item.base), item.version)
        if named.last.state.crc != item.crc:
            raise Corrupt(f"version {item.version} of topic '{item.topic}' is not what backup {manifest.number} says")
        keys |= {naming.commit_key(item.topic, version) for version in range(item.base + 1, item.version + 1)}
        for version in {item.base, item.version} - {-1}:
            table = history.table_of(version)
            if table is None:
                raise Corrupt(f"checkpoint {version} of topic '{item.topic}' is damaged; nothing was deleted")
            keys |= {naming.checkpoint_key(item.topic, version), table}
        keys |= named.files.keys()
        logs = [key.removesuffix("log") for key in named.files if key.endswith(".log")]
        keys |= {f"{stem}{suffix}" for stem in logs for suffix in SUFFIXES}
        keys |= {naming.filter_path(key) for key in named.files}
    for prefix, entries in manifest.journals().items():
        keys |= {naming.commit_key(prefix, number) for number in range(entries.first, entries.number + 1)}
    return keys
