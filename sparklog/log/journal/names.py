"""Validate topic names and ids, and define the keys of all objects.

    <topic>/_log/00000000000000000042.json                       commit 42; also a data file if it has inline records
    <topic>/_log/checkpoints/00000000000000000128.json           header of a checkpoint
    <topic>/_log/checkpoints/00000000000000000128-<id>.arrow     slice table of the checkpoint
    <topic>/append/00000000000000000042-<id>.slices              append file of a task that had read version 42
    <topic>/sealed/<partition>/00000000000000000042-<id>/        sealed segments of one partition, in Kafka's format
    %5F<rest of the name>/...                                    objects of a topic whose name starts with one `_`
    _transactions/<id>/_log/00000000000000000042.json            entry 42 of the decisions of a transactional id
    _groups/<id>/_log/00000000000000000042.json                  entry 42 of the offsets of a consumer group
    _maintenance/<job>/_log/00000000000000000042.json            entry 42 of the leases of a job
    _jobs/outcomes/_log/00000000000000000042.json                entry 42 of the job history
    _tables/<topic>/_log/00000000000000000042.json               entry 42 of the runs that copy a topic to tables
    _watermarks/<id>/_log/00000000000000000042.json              entry 42 of the watermark of a table
    _root/defaults/_log/00000000000000000042.json                entry 42 of the root defaults
    _defaults/00000000000000000042.json                          copy of this entry, to detect lost defaults
    _repair/<run>/<key>                                          object that a repair replaced or set aside

The names of sparklog's own directories start with one `_`. If the name of a topic also starts with one `_`
(`_schemas`), the name of its directory is escaped (`%5Fschemas`). See `topic_folder` and `folder_topic`. Releases up to
0.12 do not recognize such a directory as a topic.

Paths in commits are relative to the directory of the topic. A path that starts with `/` is relative to the root,
because a clone references files of the topic that it was cloned from. Versions are padded to 20 digits, so that names
sort in numerical order.

`_root.json` contains the random id of the root and is created once. Tasks use it to check that they write to the same
root as the driver.

Only an empty or new directory can become a root. If a directory contains other files, it belongs to another program, or
its path was mistyped, and a root in it would mix topics with other files. The following files are ignored, because file
systems, probes and streaming queries create them:

* `lost+found`, `.snapshot`, `.DS_Store`, `.nfs...`: files of file systems and operating systems
* `_probe` and files that start with `~`: files of a probe
* `_checkpoint...`, or a directory with Spark's `metadata` and `offsets`: the checkpoint of a query that writes to the
  root
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from sparklog.common.parsing import is_utf8
from sparklog.errors import BadRequest, NotFound, advice, shortened
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import create_or_read
from sparklog.log.journal.documents import TEXT, Member, StoredDocument, whole
from sparklog.storage import LocalStore, open_store
from sparklog.storage.locations import is_url, join, split
from sparklog.storage.store import PROBE_FOLDER, ObjectInfo, Store

ROOT_KEY = "_root.json"
REPOSITORY_KEY = "_backup.json"  # exists in a backup repository, which must not become a root
RESTORE_KEY = "_restore.json"  # exists until a restore into the root is complete
LOG_FOLDER = "_log"
CHECKPOINT_FOLDER = "_log/checkpoints"
APPEND_FOLDER = "append"
SEALED_FOLDER = "sealed"
TRANSACTIONS_FOLDER = "_transactions"
GROUPS_FOLDER = "_groups"
MAINTENANCE_FOLDER = "_maintenance"
JOBS_FOLDER = "_jobs"
TABLES_FOLDER = "_tables"
WATERMARKS_FOLDER = "_watermarks"
ROOT_FOLDER = "_root"
DEFAULTS_FOLDER = "_defaults"
"""The directory of the copy of the latest root defaults entry. The copy is stored in a separate directory, so that the
entry and its copy are not lost together.
"""
REPAIR_FOLDER = "_repair"
"""The directory of objects that repairs have replaced or set aside. No program reads these objects."""
VERSION_DIGITS = 20
MAX_ID = 1024
MAX_ID_FOLDER = 200
MAX_TOPIC_NAME = 249
ESCAPE = "%5F"
"""The escape sequence that replaces a single leading `_` of a topic name in the topic's directory name."""
MAX_VERSION = 2**63 - 1
MAX_PARTITIONS = 100_000

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]")
_ID = r"[A-Za-z0-9_-]{1,64}"
_APPEND_PATH = re.compile(rf"append/([0-9]{{20}})-{_ID}\.slices")
_SEALED_PATH = re.compile(rf"sealed/[0-9]{{1,10}}/([0-9]{{20}})-{_ID}/[0-9]{{20}}\.log")
_COMMIT_PATH = re.compile(rf"{LOG_FOLDER}/([0-9]{{20}})\.json")
_TABLE_NAME = re.compile(rf"([0-9]{{20}})-{_ID}\.arrow")
_HARMLESS = re.compile(
    rf"lost\+found|\.snapshot|\.DS_Store|\.nfs[0-9a-f]+|{PROBE_FOLDER}|~[0-9a-f]{{24}}|_checkpoint[A-Za-z0-9._-]*"
)
_MAX_HINT_FOLDERS = 16
"""Maximum number of directories in a bucket to search for a root that can be suggested in an error message."""


def check_topic_name(name: str) -> str:
    """Return `name` if it is a valid topic name in Kafka. Raises `BadRequest` if it is invalid."""
    if not isinstance(name, str) or not name:
        raise BadRequest("a topic name must have 1 to 249 letters, digits, '.', '_' or '-', found an empty name")
    if name in (".", ".."):
        raise BadRequest(f"a topic name must not be '{name}'; choose another name")
    if len(name) > MAX_TOPIC_NAME:
        raise BadRequest(f"topic name {shortened(name)} has {len(name)} characters; the maximum is {MAX_TOPIC_NAME}")
    if not _TOPIC.fullmatch(name):
        raise BadRequest(f"topic name {name!r} may contain only letters, digits, '.', '_' and '-'; choose another name")
    return name


def is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except BadRequest:
        return False
    return True


def topic_folder(topic: str) -> str:
    """Return the directory name of a topic, which is the topic name with a single leading `_` escaped.

    If the argument is already a directory name, it is returned unchanged.
    """
    return f"{ESCAPE}{topic[1:]}" if topic[:1] == "_" and topic[:2] != "__" else topic


def folder_topic(folder: str) -> str | None:
    """Return the name of the topic with this directory, or None if the directory does not belong to a topic."""
    name = f"_{folder.removeprefix(ESCAPE)}" if folder.startswith(ESCAPE) else folder
    return name if is_topic_name(name) and topic_folder(name) == folder else None


def key_topic(key: str) -> str | None:
    """Return the name of the topic that a key belongs to, or None if the key does not belong to a topic."""
    folder, slash, _ = key.partition("/")
    return folder_topic(folder) if slash else None


def topic_names(store: Store) -> Iterator[str]:
    """Yield the names of all topics that have a directory in a root, including deleted topics."""
    return (name for folder in store.list_folders("") if (name := folder_topic(folder)) is not None)


def _journal_folder(prefix: str) -> str:
    """Return the directory that contains a journal.

    `prefix` is a topic, or a path in one of sparklog's own directories.
    """
    return prefix if "/" in prefix else topic_folder(prefix)


def log_folder(prefix: str) -> str:
    """Return the directory, ending in `/`, of the journal entries under `prefix` (see `commit_key`)."""
    return f"{_journal_folder(prefix)}/{LOG_FOLDER}/"


def commit_key(prefix: str, version: int) -> str:
    """Return the key of an entry of the journal under `prefix` (a topic, `_groups/<group>`, `_transactions/<id>`)."""
    # This code is inlined, because an append creates several keys.
    folder = _journal_folder(prefix) if prefix[:1] == "_" else prefix
    return f"{folder}/{LOG_FOLDER}/{version:020d}.json"


def check_id(text: str, what: str) -> str:
    """Return `text` if it is a valid group or transactional id. Raises `BadRequest` if it is invalid."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_ID:
        raise BadRequest(f"a {what} must have 1 to {MAX_ID} characters, found {shortened(text)}")
    if not is_utf8(text):
        raise BadRequest(f"a {what} must be a string that UTF-8 can encode, found {shortened(text)}")
    return text


def id_folder(text: str) -> str:
    """Return the directory name of a group or transactional id. The id is percent-encoded, or hashed if the encoded id
    exceeds 200 bytes.

    Letters, digits, `_`, `-` and `.` (except as the first character) are not encoded. A hash starts with `=`. An
    encoded id never starts with `=`.
    """
    name = "".join(
        chr(byte) if _PLAIN_ID.match(chr(byte)) and not (byte == ord(".") and index == 0) else f"%{byte:02X}"
        for index, byte in enumerate(text.encode())
    )
    return name if len(name) <= MAX_ID_FOLDER else "=" + _sha256(text)


def _sha256(text: str) -> str:
    # Import lazily, because hashlib loads OpenSSL, which few commands need.
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()


def transactions_prefix(transactional_id: str) -> str:
    return f"{TRANSACTIONS_FOLDER}/{id_folder(transactional_id)}"


def groups_prefix(group: str) -> str:
    return f"{GROUPS_FOLDER}/{id_folder(group)}"


def defaults_copy_key(number: int) -> str:
    """Return the key of the copy of an entry of the root defaults."""
    return f"{DEFAULTS_FOLDER}/{number:020d}.json"


def checkpoint_key(prefix: str, version: int) -> str:
    return f"{_journal_folder(prefix)}/{CHECKPOINT_FOLDER}/{version:020d}.json"


def checkpoint_prefix(prefix: str) -> str:
    return f"{_journal_folder(prefix)}/{CHECKPOINT_FOLDER}/"


def checkpoint_table_name(version: int, unique: str) -> str:
    return f"{version:020d}-{unique}.arrow"


def is_checkpoint_table_name(name: str) -> bool:
    return bool(_TABLE_NAME.fullmatch(name))


def entry_number(key: str) -> int | None:
    """Return the number in the key of an entry, a commit or a checkpoint header, or None if the key belongs to another
    object.
    """
    digits, _, suffix = key.rsplit("/", 1)[-1].partition(".")
    return int(digits) if suffix == "json" and len(digits) == VERSION_DIGITS and digits.isdigit() else None


def numbers_below(store: Store, prefix: str, after: str = "") -> list[int]:
    """Return the sorted numbers of the numbered objects whose keys start with `prefix` and are greater than `after`."""
    return [number for info in store.list(prefix, after) if (number := entry_number(info.key)) is not None]


def list_entries(store: Store, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
    """List the journal entries under `prefix` whose keys are greater than `after`. Checkpoints are not listed."""
    # A version, padded to 20 digits, always starts with a zero, so this prefix excludes checkpoints.
    return store.list(f"{log_folder(prefix)}0", after)


def entry_numbers(store: Store, prefix: str, after: int = -1) -> list[int]:
    """Return the sorted numbers of the journal entries under `prefix` whose keys are greater than `after`."""
    infos = list_entries(store, prefix, commit_key(prefix, after) if after >= 0 else "")
    return [number for info in infos if (number := entry_number(info.key)) is not None]


def append_path(read_version: int, unique: str) -> str:
    """Return the path, below the topic's directory, of an append file whose writer had read `read_version`."""
    return f"{APPEND_FOLDER}/{read_version:020d}-{unique}.slices"


def commit_path(version: int) -> str:
    """Return the path, below the topic's directory, of a commit. The commit is the data file of its inline records."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def commit_path_version(path: str) -> int | None:
    """Return the version of a commit, given its path or key, or None if the path belongs to another data file."""
    match = _COMMIT_PATH.fullmatch(local_path(path))
    return int(match.group(1)) if match and int(match.group(1)) <= MAX_VERSION else None


def is_commit(path: str) -> bool:
    """Return True if the path of a data file is the path of a commit."""
    return commit_path_version(path) is not None


def copied_path(path: str, highest: int) -> str:
    """Return the path of an append file that is a copy of a commit. The copy is used if the log already has another
    commit with the same number.

    The read version of the copy is at most `highest`. If the commit belongs to another topic, the name contains a hash
    of this topic.
    """
    version = commit_path_version(path)
    assert version is not None, path
    owner = path[1:].split("/", 1)[0] if path.startswith("/") else ""
    mark = f"-{_sha256(owner)[:16]}" if owner else ""
    return append_path(min(version - 1, highest), f"commit{version:020d}{mark}")


def sealed_path(partition: int, read_version: int, unique: str, base: int) -> str:
    """Return the path, below the topic's directory, of a sealed segment in a Kafka partition directory."""
    return f"{SEALED_FOLDER}/{partition}/{read_version:020d}-{unique}/{base:020d}.log"


def filter_path(path: str) -> str:
    """Return the path or key of the key filters next to a data file (`sparklog.format.key_filter`)."""
    return f"{path.rpartition('.')[0]}.bloom"


def is_sealed(path: str) -> bool:
    """Return True if the file is a sealed segment, which has Kafka's format with absolute offsets and no footer."""
    return local_path(path).startswith(SEALED_FOLDER + "/")


def local_path(path: str) -> str:
    """Return the path below the directory of the topic that wrote the file, for example `append/x` for
    `/other/append/x`.
    """
    return path.split("/", 2)[2] if path.startswith("/") and path.count("/") >= 2 else path


def path_read_version(path: str) -> int | None:
    """Return the read version in the path of a data file, or None if a commit must not reference such a path."""
    if path.startswith("/"):
        if key_topic(path[1:]) is None:
            return None
        path = local_path(path)
    match = _APPEND_PATH.fullmatch(path) or _SEALED_PATH.fullmatch(path)
    if match is None:
        # The path is a commit with inline records, whose writer had read the previous version. The first commit has no
        # records.
        version = commit_path_version(path)
        return version - 1 if version else None
    return int(match.group(1)) if int(match.group(1)) <= MAX_VERSION else None


def file_key(topic: str, path: str) -> str:
    """Return the key of a data file that a commit of `topic` references."""
    folder = topic_folder(topic) if topic[:1] == "_" else topic
    return path[1:] if path.startswith("/") else f"{folder}/{path}"


def foreign_name(store: Store) -> str | None:
    """Return the name of a file or directory that prevents a store from becoming a root, or None if there is no such
    file.

    """
    if isinstance(store, LocalStore):
        return next((name for name in store.names() if not _is_harmless(store.location, name)), None)
    after = ""
    # One listing is sent per name, regardless of the number of objects in a directory.
    while (info := next(store.list("", after), None)) is not None:
        name, slash, _ = info.key.partition("/")
        if _HARMLESS.fullmatch(name) is None and not (slash and _is_checkpoint(store, name)):
            return info.key
        after = f"{name}/~" if slash else name
    return None


def reject_foreign_files(store: Store) -> None:
    """Raise `BadRequest`, with a remedy, if the store contains files that prevent it from becoming a root."""
    name = foreign_name(store)
    if name is None:
        return
    # Another process may have created the root since then, or a cache may have hidden `_root.json`.
    if store.stat(ROOT_KEY) is not None or any(info.key == ROOT_KEY for info in store.list(ROOT_KEY)):
        return
    folder = store.location
    raise BadRequest(f"{folder} is neither a sparklog root nor empty, found {name}: {_remedy(store, folder)}")


def _is_harmless(folder: str, name: str) -> bool:
    if _HARMLESS.fullmatch(name) is not None:
        return True
    return all(os.path.exists(os.path.join(folder, name, part)) for part in ("metadata", "offsets"))


def _is_checkpoint(store: Store, name: str) -> bool:
    return store.stat(f"{name}/metadata") is not None and any(store.list(f"{name}/offsets/"))


def _remedy(store: Store, folder: str) -> str:
    names: Iterable[str] = store.names() if isinstance(store, LocalStore) else []
    if is_url(folder):
        names = islice(store.list_folders(""), _MAX_HINT_FOLDERS)
    below = [join(folder, name) for name in names]
    root = next((path for path in below if _exists_in(path, ROOT_KEY)), None)
    if root is not None:
        return f"did you mean the root {root}? Otherwise, use an empty or new directory"
    if any(_exists_in(path, LOG_FOLDER) for path in below):
        return f"it contains topics but no {ROOT_KEY}: restore this file, or use an empty or new directory"
    above, name = split(folder)
    if name and _exists_in(above, ROOT_KEY):
        return f"it is inside the root {above}: use this root, or an empty or new directory"
    return f"use an empty or new directory, such as {join(folder, 'sparklog')}"


def _exists_in(folder: str, name: str) -> bool:
    if is_url(folder):
        return any(open_store(folder).list(name))
    return os.path.exists(os.path.join(folder, name))


@dataclass(frozen=True, slots=True)
class RootId:
    """The content of the `_root.json` object."""

    root_id: str
    created_ms: int


ROOT_MEMBERS = (Member("rootId", TEXT), Member("createdMs", whole(0)))
ROOT_JSON = StoredDocument("root", RootId, *ROOT_MEMBERS)


def read_root_id(store: Store) -> str:
    """Read the id of the root in this store with one request. Raises `NotFound` if the store is not a root."""
    try:
        data = store.get(ROOT_KEY)
    except NotFound:
        problem = f"{store.location} is not a sparklog root: it has no {ROOT_KEY}"
        create = advice(
            python="create a root: sparklog.open(..., create=True)", shell="create a root: sparklog topics create TOPIC"
        )
        raise NotFound(f"{problem}; check the path, or {create}") from None
    return _root_id_in(data)


def root_created_ms(store: Store) -> int:
    """Read the creation time of this root, according to its creator's clock, with one request."""
    return ROOT_JSON.decode(store.get(ROOT_KEY), ROOT_KEY).created_ms


@lru_cache(maxsize=16)
def _root_id_in(data: bytes) -> str:
    # Every commit reads the root, whose bytes do not change.
    return ROOT_JSON.decode(data, ROOT_KEY).root_id


def create_root_id(store: Store, env: Env) -> str:
    """Probe this store and create a root in it. Return the id of the root, which is the id of another process if that
    process created the root first.

    Raises `BadRequest` if the store contains backups, an incomplete restore or other files.
    """
    from sparklog.log.journal.probe_results import ensure_probed

    if store.stat(REPOSITORY_KEY) is not None:
        raise BadRequest(f"{store.location} contains backups and cannot be a root; restore them to another directory")
    if store.stat(RESTORE_KEY) is not None:
        raise BadRequest(f"a restore to {store.location} is incomplete: run it again, or use another directory")
    reject_foreign_files(store)
    ensure_probed(store, env.wall_ms)
    created = RootId(env.new_id(), env.wall_ms())
    existing = create_or_read(store, ROOT_KEY, ROOT_JSON.encode(created), env)
    return created.root_id if existing is None else ROOT_JSON.decode(existing, ROOT_KEY).root_id
