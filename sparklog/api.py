"""The functions of `import sparklog` that maintain, copy, import and export entire roots and directories.

Each function corresponds to the command with the same name. If a Spark session is passed, the files are read and
written by Spark tasks. Otherwise, the files are read and written by this process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from sparklog.arguments import (
    CONFIGS,
    NAME,
    NAMES,
    NUMBER,
    NUMBERS,
    PATH,
    RENAMED,
    TIME,
    checked,
)
from sparklog.common.settings import ValueType, int64, one_of, option
from sparklog.common.times import warn_of_seconds
from sparklog.errors import BadRequest
from sparklog.kafka.in_place.segment_recovery import CorruptRecords
from sparklog.log.topic.cloning import Cloned, clone_topic
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, open_log, reject_inside, resolve
from sparklog.storage import open_store
from sparklog.storage.store import Store
from sparklog.view import CORRUPT_RECORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from sparklog.kafka.exporting import ExportedTopic
    from sparklog.kafka.importing.run import ImportOptions, ImportReport
    from sparklog.log.topic.backup_manifest import Manifest
    from sparklog.maintenance.report import TopicReport
    from sparklog.maintenance.work_items import Runner, Settings
    from sparklog.retention.retain import RetainReport
    from sparklog.tools.backup.restoring import Restored
    from sparklog.tools.verification.findings import Report

PathLike = str | os.PathLike[str]
RootLike = Root | Store | PathLike
DAY_MS = 86_400_000


@checked(root=ROOT, topics=NAMES, properties=PATH.or_none(), now_ms=NUMBER.or_none())
def compact(
    root: RootLike,
    *,
    topics: Sequence[str] = (),
    properties: PathLike | None = None,
    seal_only: bool = False,
    roll: bool = False,
    dry_run: bool = False,
    now_ms: int | None = None,
    spark: SparkSession | None = None,
) -> list[TopicReport]:
    """Merge small appends, seal them into segments, and retain the latest record of each key of compacted topics.

    Args:
        root: An open root, or its location.
        topics: Names of topics. Default: all topics.
        properties: A file of defaults with Kafka's names, such as `conf/sparklog.properties`.
        seal_only: Only seal segments. Do not merge or compact.
        roll: Also seal active segments, regardless of their age and size.
        dry_run: Do not change anything. The reports list what would be done.
        now_ms: Current time in milliseconds since 1970. Default: the time of the store's clock.
        spark: A Spark session that does the work. Default: this process does the work.

    Returns:
        One report per topic, which includes errors. A failed topic does not stop the other topics.

    Raises:
        NotFound: If the root does not exist.
        BadRequest: If the properties file is not valid.

    Example:
        reports = sparklog.compact("/data/log", topics=["orders"], roll=True)
        assert not any(report.failures for report in reports)
    """
    from sparklog.compaction.run import CompactOptions, compact_root
    from sparklog.maintenance.job_history import COMPACT, SEAL, RunRecorder
    from sparklog.maintenance.report import TopicReport

    opened = _opened(root)
    settings = _settings(opened, properties, now_ms, dry_run)
    options = CompactOptions(topics, seal_only, roll, dry_run)
    kind = SEAL if seal_only else COMPACT
    recording = RunRecorder[TopicReport](opened, kind, settings, topics, enabled=not dry_run)
    return list(recording.run(lambda: compact_root(opened, settings, _runner(spark), options)))


@checked(root=ROOT, topics=NAMES, properties=PATH.or_none(), now_ms=NUMBER.or_none())
def retain(
    root: RootLike,
    *,
    topics: Sequence[str] = (),
    properties: PathLike | None = None,
    dry_run: bool = False,
    now_ms: int | None = None,
    spark: SparkSession | None = None,
) -> list[RetainReport]:
    """Expire records by time, size and log start offset, then delete files that no version needs.

    Args:
        root: An open root, or its location.
        topics: Names of topics, including deleted topics. Default: all topics.
        properties: A file of defaults with Kafka's names, such as `conf/sparklog.properties`.
        dry_run: Do not change anything. The reports list what would be deleted and why.
        now_ms: Current time in milliseconds since 1970. Default: the time of the store's clock.
        spark: A Spark session that deletes files in parallel. Default: this process deletes the files.

    Returns:
        One report per topic, which includes errors.

    Raises:
        NotFound: If the root does not exist, or if a topic never existed. In this case, nothing is changed.
        BadRequest: If the properties file is not valid.

    Example:
        reports = sparklog.retain("/data/log", dry_run=True)
    """
    from sparklog.maintenance.job_history import RETAIN, RunRecorder
    from sparklog.retention.retain import RetainReport, retain_root

    opened = _opened(root)
    settings = _settings(opened, properties, now_ms, dry_run)
    recording = RunRecorder[RetainReport](opened, RETAIN, settings, topics, enabled=not dry_run)
    runner = _runner(spark)
    return list(recording.run(lambda: retain_root(opened, settings, topics=topics, runner=runner, dry_run=dry_run)))


@checked(path=ROOT, topics=NAMES)
def verify(
    path: RootLike, *, topics: Sequence[str] = (), quick: bool = False, spark: SparkSession | None = None
) -> Report:
    """Read every byte of a root or of a Kafka directory, and report corruption.

    Args:
        path: A root, a topic directory, a Kafka log directory, or one of its partition directories.
        topics: Names of topics. Default: all topics.
        quick: Only check that the files of a root exist and have the right size.
        spark: A Spark session that reads the files of a root. Default: this process reads the files.

    Returns:
        A report, whose `sound` is True if no corruption was found. Corruption is reported, and does not raise an error.

    Raises:
        NotFound: If there is no log at the path, or if a topic does not exist.

    Example:
        report = sparklog.verify("/data/log")
        assert report.sound, report.findings
    """
    from sparklog.tools.verification.run import verify_root

    if isinstance(path, (Root, Store)):
        store = path.store if isinstance(path, Root) else path
        return verify_root(store, topics=topics, quick=quick, runner=_runner(spark))
    location = resolve(os.fspath(path))
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        from sparklog.tools.verification.kafka_directory import verify_log_dir

        if quick:
            raise BadRequest(
                f"{location.path} is a {location.kind}, which does not contain a list of its files: omit quick"
            )
        return verify_log_dir(location.path, topics=topics)
    names = topics if location.topic is None else [*topics, location.topic]
    return verify_root(open_store(location.root), topics=names, quick=quick, runner=_runner(spark))


@checked(root=ROOT, to=PATH, topics=NAMES.or_none(), keep=int64(1).or_none(), keep_days=NUMBER.or_none())
def backup(
    root: RootLike,
    to: PathLike,
    *,
    topics: Collection[str] | None = None,
    link: bool = False,
    keep: int | None = None,
    keep_days: int | None = None,
) -> Manifest:
    """Back up all topics, transactions and consumer groups at one point in time. Only new files are copied.

    Args:
        root: An open root, or its location.
        to: Directory of the backup repository, which is created if it does not exist.
        topics: Names of topics, or None for all topics.
        link: Create hard links instead of copies on the same disk. Hard links protect against deletion, but not against
            corruption.
        keep: Number of latest backups to keep. Older backups are deleted afterwards.
        keep_days: Age in days after which backups are deleted afterwards. If `keep` is also given, a backup is deleted
            only if both options allow it.

    Returns:
        The manifest of the new backup: `number`, topics, groups and bytes.

    Raises:
        Corrupt: If a file of the root is corrupt. In this case, no backup is created.
        Conflict: If backups are being deleted at the same time.
        BadRequest: If the directory contains other files, or is inside a root.

    Example:
        made = sparklog.backup("/data/log", "/data/backup", keep=14)
        print(made.number)
    """
    from sparklog.tools.backup.backing_up import back_up
    from sparklog.tools.backup.repository import prune

    reject_inside(os.fspath(to))
    target = open_store(to)
    made = back_up(_opened(root), target, topics=topics, link=link)
    if keep is not None or keep_days is not None:
        prune(target, keep=keep, keep_ms=None if keep_days is None else keep_days * DAY_MS)
    return made


@checked(
    source=PATH,
    to=PATH,
    topics=NAMES.or_none(),
    number=NUMBER.or_none(),
    version=NUMBER.or_none(),
    time_ms=TIME.or_none(),
    rename=RENAMED.or_none(),
)
def restore(
    source: PathLike,
    to: PathLike,
    *,
    topics: Sequence[str] | None = None,
    number: int | None = None,
    version: int | None = None,
    time_ms: int | None = None,
    rename: Mapping[str, str] | None = None,
    link: bool = False,
    dry_run: bool = False,
) -> Restored:
    """Create a root from a backup, or from an earlier state of a root. By default, the latest state is restored.

    Args:
        source: Directory of the backup repository, or a root.
        to: Location of the new root, which must be empty or must not exist.
        topics: Names of topics, or None for all topics.
        number: Number of a backup. At most one of `number`, `version` and `time_ms` can be given.
        version: Version of the topic, if a single topic is restored.
        time_ms: Time to restore, in milliseconds since 1970.
        rename: New names of topics by old name.
        link: Create hard links instead of copies on the same disk.
        dry_run: Do not change anything. Only return what would be restored.

    Returns:
        The restored topics, versions, files, bytes and groups.

    Raises:
        NotFound: If the backup, topic, version or time does not exist.
        BadRequest: If `to` is not empty, or is inside a root.
        Corrupt: If a file is corrupt.

    Example:
        restored = sparklog.restore("/data/backup", "/data/log-again", topics=["orders"])
        print(restored.files)
    """
    from sparklog.tools.backup.restore_point import RestorePoint
    from sparklog.tools.backup.restoring import plan_restore
    from sparklog.tools.backup.restoring import restore as restore_backup

    warn_of_seconds(time_ms=time_ms)
    point = RestorePoint(None if topics is None else tuple(dict.fromkeys(topics)), number, version, time_ms)
    reject_inside(os.fspath(to))
    if dry_run:
        return plan_restore(open_store(source), point, rename=rename)
    return restore_backup(open_store(source), open_store(to), point, rename=rename, link=link)


@checked(root=ROOT, topic=NAME, name=NAME, version=NUMBER.or_none(), time_ms=TIME.or_none())
def clone(
    root: RootLike,
    topic: str,
    name: str,
    *,
    version: int | None = None,
    time_ms: int | None = None,
    dry_run: bool = False,
) -> Cloned:
    """Create a topic with the records of another topic, as of now, or as of a version or a time. No records are copied.

    Args:
        root: An open root, or its location.
        topic: Topic to clone. To clone a deleted topic, a version or a time is required.
        name: Name of the new topic.
        version: Version of the topic. Default: the latest version. It cannot be combined with `time_ms`.
        time_ms: Time to clone, in milliseconds since 1970.
        dry_run: Do not change anything. Only return what the clone would contain.

    Returns:
        The version, offsets, shared files and bytes of the clone.

    Raises:
        NotFound: If the topic or the version does not exist.
        Conflict: If a topic with this name exists, or if the version has been vacuumed.
        BadRequest: If a version and a time are given.

    Example:
        sparklog.clone("/data/log", "orders", "orders-yesterday")
    """
    warn_of_seconds(time_ms=time_ms)
    return clone_topic(_opened(root), topic, name, version=version, time_ms=time_ms, dry_run=dry_run)


@checked(
    root=ROOT,
    log_dir=PATH,
    topics=NAMES.or_none(),
    configs=CONFIGS.or_none(),
    corrupt_records=CORRUPT_RECORDS,
    open_transactions=one_of("keep", "abort", "refuse"),
    link=one_of("auto", "never"),
)
def import_kafka(
    root: RootLike,
    log_dir: PathLike,
    *,
    topics: Sequence[str] | None = None,
    configs: Mapping[str, object] | None = None,
    corrupt_records: CorruptRecords = "fail",
    open_transactions: Literal["keep", "abort", "refuse"] = "keep",
    link: Literal["auto", "never"] = "auto",
    groups: bool = True,
    transactions: bool = True,
    dry_run: bool = False,
) -> ImportReport:
    """Import topics of a Kafka log directory into a root, with the same offsets, timestamps, headers and segments.

    Args:
        root: An open root, or its location. If there is no root at the location, a root is created.
        log_dir: Log directory of a stopped broker, or a copy of a log directory. The directory is not changed.
        topics: Names of topics, or None for all topics except Kafka's internal topics.
        configs: Configs to set on each topic. They override the configs in the metadata log of a KRaft broker.
        corrupt_records: As in `open_view`.
        open_transactions: How to handle transactions that are open in Kafka: `keep` leaves them open until a later
            import contains their end, `abort` aborts them, `refuse` rejects the import.
        link: `auto` creates hard links to closed segments on the same disk. `never` copies all segments.
        groups: Import the offsets of consumer groups from `__consumer_offsets`.
        transactions: Import the ids and decisions of open transactions from `__transaction_state`.
        dry_run: Do not change anything. Only return what would be imported.

    Returns:
        The imported records per topic and partition, and the groups. A repeated import adds only new records.

    Raises:
        NotFound: If the log directory or a topic does not exist.
        Conflict: If an existing topic was not imported from this directory, or was written to since its import.
        Corrupt: If a file is corrupt and `corrupt_records` is `fail`.

    Example:
        report = sparklog.import_kafka("/data/log", "/var/lib/kafka/data", configs={"retention.ms": 604_800_000})
        print([topic.topic for topic in report.topics])
    """
    from sparklog.kafka.importing.run import ImportOptions, import_log_dir

    options = ImportOptions(
        topics,
        configs,
        corrupt_records=corrupt_records,
        open_transactions=open_transactions,
        link=link,
        groups=groups,
        transactions=transactions,
    )
    if isinstance(root, (Root, Store)):
        return import_log_dir(_opened(root), log_dir, options, dry_run=dry_run)
    return import_into(os.fspath(root), log_dir, options, dry_run=dry_run)


def import_into(path: str, log_dir: PathLike, options: ImportOptions, *, dry_run: bool, **watch: Any) -> ImportReport:
    """Import into the root at a path. If there is no root at the path, a root is created.

    `watch` is passed to `import_log_dir`.
    """
    from sparklog.kafka.importing.run import ImportOptions, import_log_dir

    location = resolve(path)
    log = None if location.kind == NOTHING else open_log(location)
    if log is None and not dry_run:
        # Check the input first, so that invalid input does not create a root.
        policy = options.corrupt_records
        checked = ImportOptions(options.topics, options.configs, options.force, policy, groups=False)
        import_log_dir(None, log_dir, checked, dry_run=True, on_skipped=lambda _: None)
        log = open_log(location, create=True)
    return import_log_dir(log, log_dir, options, dry_run=dry_run, **watch)


_GROUPS = ValueType("a list of names or 'all'", lambda value: value == "all" or NAMES.accepts(value))


class ExportKeywords(TypedDict, total=False):
    """Options of an export (see `export_kafka`)."""

    # fmt: off
    partitions: Annotated[Sequence[int] | None, option(None,
        "Partitions of each topic to export, or None for all partitions.", NUMBERS)]
    start_ms: Annotated[int | None, option(None,
        "Start each partition at the first record at or after this time.", TIME)]
    end_ms: Annotated[int | None, option(None,
        "End each partition before the first record at or after this time.", TIME)]
    version: Annotated[int | None, option(None,
        "Version of the topics, or None for the version at `time_ms` or the latest version.", NUMBER)]
    time_ms: Annotated[int | None, option(None,
        "Time of the versions to export; it cannot be combined with `version`.", TIME)]
    groups: Annotated[Sequence[str] | Literal["all"] | None, option(None,
        "Export the committed offsets of these groups as `__consumer_offsets` and as a CSV file.", _GROUPS)]
    link: Annotated[bool, option(False, "Create hard links to sealed segments instead of copies, on the same disk.")]
    keep_leader_epochs: Annotated[bool, option(False,
        "Preserve leader epochs, for an export to the cluster that assigned them; default: set them to 0.")]
    # fmt: on


@checked(ExportKeywords, root=ROOT, topics=NAMES, to=PATH)
def export_kafka(
    root: RootLike,
    topics: Sequence[str],
    to: PathLike,
    **options: Unpack[ExportKeywords],
) -> list[ExportedTopic]:
    """Write topics to a log directory that a Kafka broker can open.

    Args:
        root: An open root, or its location.
        topics: Names of the topics.
        to: Directory to create, which must be empty or must not exist.

    Returns:
        One entry per topic, with its id, its configs and the contents of each partition.

    Raises:
        NotFound: If a topic, partition, version or group does not exist.
        Conflict: If the directory is not empty.
        Corrupt: If a file is corrupt.

    Example:
        exported = sparklog.export_kafka("/data/log", ["orders"], "/data/kafka-logs")
    """
    from sparklog.kafka.exporting import ExportOptions, export_topics

    warn_of_seconds(**{name: options.get(name) for name in ("start_ms", "end_ms", "time_ms")})
    return export_topics(_opened(root), to, topics, ExportOptions(**options))


def _opened(root: RootLike) -> Root:
    return root if isinstance(root, Root) else open_root(root)


def _runner(spark: SparkSession | None) -> Runner:
    from sparklog.maintenance.spark_runner import SparkRunner
    from sparklog.maintenance.work_items import InProcess

    return InProcess() if spark is None else SparkRunner(spark)


def _settings(root: Root, properties: PathLike | None, now_ms: int | None, dry_run: bool) -> Settings:
    from sparklog.maintenance.properties import settings_of_file
    from sparklog.maintenance.work_items import Settings, store_clock_ms

    warn_of_seconds(now_ms=now_ms)
    given = Settings(0) if properties is None else settings_of_file(os.fspath(properties))
    return replace(given, now_ms=store_clock_ms(root.store, root.env, dry_run=dry_run) if now_ms is None else now_ms)
