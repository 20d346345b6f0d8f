"""The functions of `import sparklog` that work on whole roots and directories: maintain, copy, import, export.

Each is what a command or a job of the same name does. `spark` is a session in which files are read and written; without
one the work is done in this process.
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
from sparklog.common.settings import ValueType, one_of, option, whole
from sparklog.common.times import warn_of_seconds
from sparklog.errors import BadRequest
from sparklog.kafka.in_place.segment_recovery import CorruptRecords
from sparklog.log.topic.cloning import Cloned, clone_topic
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, open_log, refuse_inside, resolve
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
    """Merge small appends, seal them into segments, and keep the latest record of each key of compacted topics.

    Args:
        root: an open root, or its location.
        topics: names; empty: all.
        properties: a file of defaults under Kafka's names, as `conf/sparklog.properties`.
        seal_only: neither merge nor compact.
        roll: seal active segments too, young and small as they are.
        dry_run: change nothing; the reports say what would be done.
        now_ms: the time of now; default: the store's.
        spark: a session to do the work in; default: this process.

    Returns:
        One report a topic, errors among them: what fails stops no other topic.

    Raises:
        NotFound: there is no root.
        BadRequest: the properties file has an error.

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
        root: an open root, or its location.
        topics: names, also of deleted topics; empty: all.
        properties: a file of defaults under Kafka's names, as `conf/sparklog.properties`.
        dry_run: change nothing; the reports say what would go and why.
        now_ms: the time of now; default: the store's.
        spark: a session in which many files are deleted at once; default: this process.

    Returns:
        One report a topic, errors among them.

    Raises:
        NotFound: there is no root, or a name was never a topic: then nothing is done.
        BadRequest: the properties file has an error.

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
    """Read every byte of a root, or of a Kafka directory, and name what is not as it was written.

    Args:
        path: a root, a topic's folder, a Kafka log directory or one partition folder of it.
        topics: names; empty: all.
        quick: of a root's files only check that they are there and how long they are.
        spark: a session in which a root's files are read; default: this process.

    Returns:
        A report; `sound` is True if nothing is damaged. Damage is never raised.

    Raises:
        NotFound: there is no log, or no such topic.

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
            raise BadRequest(f"{location.path} is a {location.kind}, which has no log of its files: leave quick out")
        return verify_log_dir(location.path, topics=topics)
    names = topics if location.topic is None else [*topics, location.topic]
    return verify_root(open_store(location.root), topics=names, quick=quick, runner=_runner(spark))


@checked(root=ROOT, to=PATH, topics=NAMES.or_none(), keep=whole(1).or_none(), keep_days=NUMBER.or_none())
def backup(
    root: RootLike,
    to: PathLike,
    *,
    topics: Collection[str] | None = None,
    link: bool = False,
    keep: int | None = None,
    keep_days: int | None = None,
) -> Manifest:
    """Back up all topics, transactions and consumer groups as of one moment. Copies only what is new.

    Args:
        root: an open root, or its location.
        to: the folder of the backups; made if need be.
        topics: names; None: all.
        link: hard links in place of copies where both are on one disk: against deletion, not against damage.
        keep: afterwards drop all but the newest backups.
        keep_days: afterwards drop backups that are older. With both, a backup stays that either keeps.

    Returns:
        What the new backup says of itself: `number`, topics, groups, bytes.

    Raises:
        Corrupt: a file of the root is damaged: there is no new backup then.
        Conflict: backups are being dropped just now.
        BadRequest: the folder holds something else, or lies inside a root.

    Example:
        made = sparklog.backup("/data/log", "/data/backup", keep=14)
        print(made.number)
    """
    from sparklog.tools.backup.backing_up import back_up
    from sparklog.tools.backup.repository import prune

    refuse_inside(os.fspath(to))
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
    """Make a new root of a backup, or of a root as it was: the newest state, or that of a backup, version or time.

    Args:
        source: the folder of the backups, or a root.
        to: where the new root is to be; empty or not there.
        topics: names; None: all.
        number: of one backup; `version`: of one topic; `time_ms`: since 1970. At most one of them.
        rename: old name to new name of topics.
        link: hard links in place of copies where both are on one disk.
        dry_run: change nothing, only say what would be restored.

    Returns:
        What was restored: topics, versions, files, bytes, groups.

    Raises:
        NotFound: what is wanted is not there.
        BadRequest: the folder is not empty, or lies inside a root.
        Corrupt: bytes are damaged.

    Example:
        restored = sparklog.restore("/data/backup", "/data/log-again", topics=["orders"])
        print(restored.files)
    """
    from sparklog.tools.backup.restore_point import RestorePoint
    from sparklog.tools.backup.restoring import plan_restore
    from sparklog.tools.backup.restoring import restore as restore_backup

    warn_of_seconds(time_ms=time_ms)
    wanted = RestorePoint(None if topics is None else tuple(dict.fromkeys(topics)), number, version, time_ms)
    refuse_inside(os.fspath(to))
    if dry_run:
        return plan_restore(open_store(source), wanted, rename=rename)
    return restore_backup(open_store(source), open_store(to), wanted, rename=rename, link=link)


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
    """Create a topic that shows another one as it is, or was at a version or a time. Nothing is copied.

    Args:
        root: an open root, or its location.
        topic: the topic to clone; a deleted one with a version or a time.
        name: of the new topic.
        version: of the topic; `time_ms`: since 1970. At most one of them; default: the newest version.
        dry_run: change nothing, only say what the clone would hold.

    Returns:
        What the clone holds: version, offsets, files and bytes it shares.

    Raises:
        NotFound: there is no such topic or version.
        Conflict: the name is taken, or the version is older than what is kept.

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
    """Take topics of a Kafka log directory into a root: offsets, times, headers and segments as they are.

    Args:
        root: an open root, or its location; made if there is none.
        log_dir: the log directory of a stopped broker, or a copy of one. It is only read.
        topics: names; None: all but Kafka's internal ones.
        configs: set on each topic: Kafka keeps them elsewhere.
        corrupt_records: as for `open_view`.
        open_transactions: what becomes of transactions that Kafka has not ended: `keep` them until a later import
            brings their end, `abort` them, or `refuse` the import.
        link: `auto`: closed segments become hard links where both are on one disk; `never`: copies.
        groups: take offsets of consumer groups from `__consumer_offsets`.
        transactions: take ids and decisions of open transactions from `__transaction_state`.
        dry_run: change nothing, only say what would be taken.

    Returns:
        What was imported, by topic and partition, and the groups. Run again, an import takes what is new since.

    Raises:
        NotFound: there is no log directory, or no such topic.
        Conflict: a topic exists and was not imported from this one, or was written to since.
        Corrupt: a file is damaged, and `corrupt_records` is `fail`.

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
    """Import into the root at a path, which is made if there is none; `watch`: see `import_log_dir`."""
    from sparklog.kafka.importing.run import ImportOptions, import_log_dir

    location = resolve(path)
    log = None if location.kind == NOTHING else open_log(location)
    if log is None and not dry_run:
        # Wrong input makes no new root.
        policy = options.corrupt_records
        checked = ImportOptions(options.topics, options.configs, options.force, policy, groups=False)
        import_log_dir(None, log_dir, checked, dry_run=True, on_skipped=lambda _: None)
        log = open_log(location, create=True)
    return import_log_dir(log, log_dir, options, dry_run=dry_run, **watch)


_GROUPS = ValueType("a list of names or 'all'", lambda value: value == "all" or NAMES.accepts(value))


class ExportKeywords(TypedDict, total=False):
    """Options of an export: see `export_kafka`."""

    # fmt: off
    partitions: Annotated[Sequence[int] | None, option(None, "Only these, of each topic; None: all.", NUMBERS)]
    start_ms: Annotated[int | None, option(None, "Begin each partition with the first record that is not older.", TIME)]
    end_ms: Annotated[int | None, option(None,
        "End each partition in front of the first record that is not older.", TIME)]
    version: Annotated[int | None, option(None, "Of the topics; None: that of `time_ms`, or the latest.", NUMBER)]
    time_ms: Annotated[int | None, option(None, "Export the versions of this time; not with `version`.", TIME)]
    groups: Annotated[Sequence[str] | Literal["all"] | None, option(None,
        "Export their committed offsets as `__consumer_offsets` and as a CSV file.", _GROUPS)]
    link: Annotated[bool, option(False, "Hard links to sealed segments in place of copies, on the same disk.")]
    keep_leader_epochs: Annotated[bool, option(False,
        "Keep leader epochs, for the cluster that gave them; else they become 0.")]
    # fmt: on


@checked(ExportKeywords, root=ROOT, topics=NAMES, to=PATH)
def export_kafka(
    root: RootLike,
    topics: Sequence[str],
    to: PathLike,
    **options: Unpack[ExportKeywords],
) -> list[ExportedTopic]:
    """Write topics as a log directory that a Kafka broker opens as its own.

    Args:
        root: an open root, or its location.
        topics: names.
        to: the directory to make; empty or not there.

    Returns:
        One entry a topic: its id, its configs, and what each partition holds.

    Raises:
        NotFound: there is no such topic, partition, version or group.
        Conflict: the directory is not empty.
        Corrupt: a file is damaged.

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
