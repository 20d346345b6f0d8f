"""Determine if a path is a root, a topic directory, a Kafka log directory or a Kafka partition directory, and open it.

The rules, in order of precedence:

1. A directory with `_root.json` is a root. A directory with `_backup.json` is a read-only root.
2. A directory below a root is a topic directory.
3. A directory with 20-digit `.log` files is a Kafka partition directory.
4. A directory with partition directories `<name>-<n>` is a Kafka log directory.
5. Any other path is not a log yet. Reads of the path are rejected, and writes create a root at the path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.log.journal.clocks import SYSTEM, ClockReading
from sparklog.log.journal.names import REPOSITORY_KEY, ROOT_JSON, ROOT_KEY, folder_topic, is_topic_name
from sparklog.storage import local_path, open_store
from sparklog.storage.locations import is_url, normal_location, split

if TYPE_CHECKING:
    from sparklog.kafka.in_place.files import FilePath
    from sparklog.log.read.skipped import OnSkipped
    from sparklog.log.state.view import LogView
    from sparklog.log.topic.root import Root

ROOT = "root"
TOPIC = "topic"
KAFKA_DIRECTORY = "Kafka log directory"
KAFKA_PARTITION = "Kafka partition"
NOTHING = "nothing"

_SEALED_DIRECTORY = re.compile(r"\d{20}-[A-Za-z][A-Za-z0-9_-]*")
"""Name of a directory of sealed segments in a topic directory. The records in the directory can be read only as part of
the topic.
"""


@dataclass(frozen=True)
class Location:
    """The kind of a path.

    * `root`: the location of the root that contains the path, or the path itself
    * `topic`: the topic if the path is a topic directory, otherwise None
    * `root_id_read`: the id of a root in a bucket, and the time at which this process read the id, so that a later
      request is not required
    """

    kind: str
    path: str
    root: str
    topic: str | None = None
    root_id_read: tuple[str, ClockReading] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Location], tuple[str | None, ...]]:
        # The id is not pickled, because another process must read it again.
        return Location, (self.kind, self.path, self.root, self.topic)

    def last_read_of(self, root_id: str) -> ClockReading | None:
        """Return the time at which this process read the given root id, or None if the id was not read recently."""
        read_id, read_at = self.root_id_read or (None, None)
        return read_at if read_at and read_id == root_id and SYSTEM.now().is_soon_after(read_at) else None


def resolve(path: str | None) -> Location:
    """Determine the kind of a path. Raises BadRequest if the path is empty or a file."""
    if not path:
        raise BadRequest(f"Expected the path of a root, a topic directory or a Kafka log directory, found {path!r}")
    if is_url(path):
        return _resolve_url(normal_location(path))
    location = absolute(path)
    if os.path.exists(location) and not os.path.isdir(location):
        raise BadRequest(f"The path {location} is a file: use a root, a topic directory or a Kafka log directory")
    if _is_local_root(location):
        return Location(ROOT, location, location)
    parent, name = os.path.split(location)
    topic = _topic_at(name, lambda: os.path.isdir(location))
    if _is_local_root(parent) and topic is not None:
        return Location(TOPIC, location, parent, topic)
    if os.path.isdir(location):
        from sparklog.kafka.in_place.directory import kafka_layout

        layout = kafka_layout(location)
        if layout is not None and not _SEALED_DIRECTORY.fullmatch(name):
            return Location(KAFKA_PARTITION if layout == "partition" else KAFKA_DIRECTORY, location, location)
    return Location(NOTHING, location, location)


def _is_local_root(directory: str) -> bool:
    return any(os.path.isfile(os.path.join(directory, key)) for key in (ROOT_KEY, REPOSITORY_KEY))


def _resolve_url(url: str) -> Location:
    """Determine the kind of a URL. One request is required for a root, two requests for a topic, and three or more
    requests for other paths.
    """
    from sparklog.kafka.in_place.directory import bucket_layout
    from sparklog.kafka.in_place.files import file_path

    directory = file_path(url)
    above, name = split(url)
    read_at = SYSTEM.now()
    if (stored := _content(directory, ROOT_KEY)) is not None:
        return Location(ROOT, url, url, root_id_read=_id_and_time(stored, read_at))
    read_at = SYSTEM.now()
    topic = _topic_at(name, lambda: _has_files(directory))
    if topic is not None and (stored := _content(directory.parent, ROOT_KEY)) is not None:
        return Location(TOPIC, url, above, topic, _id_and_time(stored, read_at))
    layout = bucket_layout(directory)
    if layout is not None and not _SEALED_DIRECTORY.fullmatch(name):
        return Location(KAFKA_PARTITION if layout == "partition" else KAFKA_DIRECTORY, url, url)
    if _has_file(directory, REPOSITORY_KEY):
        return Location(ROOT, url, url)
    if topic is not None and _has_file(directory.parent, REPOSITORY_KEY):
        return Location(TOPIC, url, above, topic)
    return Location(NOTHING, url, url)


def _topic_at(name: str, is_directory: Callable[[], bool]) -> str | None:
    """Return the topic whose directory or name is the last part of a path, or None for sparklog's own directories.

    If the name of a topic's directory differs from the topic name (`_schemas`), the topic name is not used for a
    directory. Therefore an existing directory with this name belongs to sparklog.
    """
    return folder_topic(name) or (name if is_topic_name(name) and not is_directory() else None)


def _has_file(directory: FilePath, name: str) -> bool:
    """Return True if a directory contains a file with this name."""
    return directory.child(name).is_file() if directory.is_local else _content(directory, name) is not None


def _has_files(directory: FilePath) -> bool:
    store, key = directory.as_object()
    return any(store.list(f"{key}/"))


def _content(directory: FilePath, name: str) -> bytes | None:
    """Return the contents of a file in a directory in a bucket, or None if the file does not exist. The file is read
    instead of listed, because an error for a missing bucket is raised only by a read.
    """
    store, key = directory.child(name).as_object()
    try:
        return store.get(key)
    except NotFound:
        return None


def _id_and_time(stored: bytes, read_at: ClockReading) -> tuple[str, ClockReading] | None:
    """Return the id in `_root.json`, and the time when it was read.

    Returns None if the file is corrupt. The corruption is reported when the root is opened.
    """
    try:
        return ROOT_JSON.decode(stored, ROOT_KEY).root_id, read_at
    except (BadRequest, Corrupt):
        return None


def absolute(path: str) -> str:
    """Return a normalized URL, or an absolute local path, because tasks may run in another directory."""
    return normal_location(path) if is_url(path) else local_path(os.path.expanduser(path))


def open_view(
    location: Location,
    *,
    tailing: bool,
    corrupt_records: str = "fail",
    on_skipped: OnSkipped | None = None,
) -> LogView:
    """Open the log at a location to read it.

    `corrupt_records` and `on_skipped` are arguments of `KafkaView`. If `on_skipped` is None, a warning is logged for
    each skipped range.

    Raises NotFound if the location does not contain a log, and BadRequest if the policy is `truncate` and the location
    is a root.
    """
    if location.kind in (ROOT, TOPIC):
        check_policy_of_root(corrupt_records, location.root)
        from sparklog.log.read.skipped import log_skipped as log_skipped_of_root
        from sparklog.log.topic.root import RootView

        if corrupt_records == "fail":
            return RootView(open_log(location))
        return RootView(open_log(location), log_skipped_of_root if on_skipped is None else on_skipped)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        from sparklog.kafka.in_place.segment_recovery import log_skipped
        from sparklog.kafka.in_place.view import KafkaView

        report = log_skipped if on_skipped is None else on_skipped
        return KafkaView(location.path, tailing=tailing, corrupt_records=corrupt_records, on_skipped=report)
    raise NotFound(missing(location))


def check_policy_of_root(corrupt_records: str, root: str) -> None:
    """Raise BadRequest for a policy that only Kafka directories support."""
    if corrupt_records not in ("fail", "skip"):
        raise BadRequest(
            f"corruptRecords={corrupt_records} applies only to Kafka directories, but {root} is a sparklog root: use "
            "fail or skip"
        )


def missing(location: Location) -> str:
    problem = "has neither a _root.json nor Kafka partition directories" if exists(location) else "does not exist"
    return (
        f"There is no log at {location.path}: the path {problem}; use a sparklog root, a topic directory, "
        "a Kafka log directory or one Kafka partition directory"
    )


def exists(location: Location) -> bool:
    if is_url(location.path):
        return any(open_store(location.path).list(""))
    return os.path.isdir(location.path)


def topics_at(location: Location, topics: Sequence[str]) -> tuple[str, ...]:
    """Return the topics to read. Raises BadRequest if the location is the directory of another topic."""
    directory = location.topic if location.kind == TOPIC else None
    if directory is not None and any(name != directory for name in topics):
        raise BadRequest(f"the location is the directory of topic {directory}: use the root to read other topics")
    return tuple(topics) if directory is None else (directory,)


def open_log(location: Location, *, create: bool = False) -> Root:
    """Open the root at or above a location. If `create` is True and the location is empty, create a root."""
    from sparklog.log.topic.root import open_root

    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"The path {location.path} is a {location.kind}, which is read-only: use a sparklog root;"
            " `sparklog import` imports its topics"
        )
    if create and location.kind == NOTHING:
        reject_inside(location.root)
    return open_root(location.root, create=create and location.kind == NOTHING)


def reject_inside(path: str) -> None:
    """Raise BadRequest for a new root or backup repository inside a root, a backup repository or a Kafka directory.

    Maintenance or a restore of the outer directory would treat the files of the new root as its own files. A broker
    does not start if its log directory contains a directory that is not a partition directory.
    """
    from sparklog.kafka.in_place.directory import bucket_layout
    from sparklog.kafka.in_place.files import file_path

    path = absolute(path)
    above, name = split(path)
    while name:
        directory = file_path(above)
        if _has_file(directory, ROOT_KEY):
            raise BadRequest(
                f"The path {path} is inside the root {above}, and roots cannot be nested: use the root, one"
                " of its topic directories, or a path outside the root"
            )
        if _has_file(directory, REPOSITORY_KEY):
            raise BadRequest(
                f"The path {path} is inside the backup repository {above}: use a path outside the repository"
            )
        if bucket_layout(directory) is not None:
            raise BadRequest(
                f"The path {path} is inside the Kafka directory {above}, and a broker does not start if its log"
                " directory contains a root: use a path outside the directory"
            )
        above, name = split(above)
