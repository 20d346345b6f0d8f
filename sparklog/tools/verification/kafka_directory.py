"""Verify a Kafka log directory or a single partition directory in place. No files are written.

Most of Kafka's small files have no checksum. Some of their values cannot be compared with other data: the offsets in
the checkpoint files of the log directory, and the topic id in `partition.metadata` if the directory contains only one
partition of a topic. An offset beyond the log end is not necessarily corrupt. When Kafka truncates a log after an
unclean shutdown or because a follower has a new leader, it updates some of these files later, and never updates the
other files. An offset beyond the log end is reported as a note, because the end of the log may also have been lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from sparklog.errors import Corrupt, NotFound, did_you_mean
from sparklog.format import checkpoint_files
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, LOG_STARTS_FILE, TopicPartition
from sparklog.kafka.in_place.directory import (
    GROUPS_FILE,
    kafka_layout,
    parse_topic_partition,
    partition_dirs,
    properties_name,
)
from sparklog.kafka.in_place.files import DELETED, AnyPath, FilePath, file_path, relative
from sparklog.kafka.in_place.segment_file import CLEANED, SWAP
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.verification.findings import CHECKPOINT, CheckCounts, Finding, Report, UnreferencedFile
from sparklog.tools.verification.kafka_partition import COMPARE, REPLICA, WRONG_FORMAT, KafkaPartition
from sparklog.tools.verification.run import Say

CHECKPOINTS = (
    *(LOG_STARTS_FILE, checkpoint_files.HIGH_WATERMARKS_FILE),
    *(checkpoint_files.RECOVERY_POINTS_FILE, CLEANER_OFFSETS_FILE),
)
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
KNOWN_FILES = frozenset({*CHECKPOINTS, "meta.properties", "bootstrap.checkpoint", ".lock", CLEAN_SHUTDOWN_FILE})
TEMPORARY_SUFFIXES = (DELETED, CLEANED, SWAP)
SEGMENT_FILE = re.compile(r"\d{20}\.(?:log|index|timeindex|txnindex)")
"""Files that a cleaner replaces when it completes a swap. They are ignored if the swap file exists."""
TEMPORARY_FOLDERS = ("-delete", "-future", "-stray")


def verify_log_dir(
    path: AnyPath, *, topics: Sequence[str] = (), say: Say = lambda line: None, env: Env = SYSTEM
) -> Report:
    """Verify a Kafka log directory or partition directory.

    Raises `NotFound` if `path` is neither a log directory nor a partition directory, or if a requested topic is not in
    the directory.
    """
    folder = file_path(path)
    layout = kafka_layout(folder)
    if layout is None:
        message = (
            f"{folder} is not a Kafka log directory, because it has no directories such as orders-0 with .log files"
        )
        raise NotFound(f"{message}; check the path")
    started_ms = env.boot_ms()
    folders = {parse_topic_partition(folder): folder} if layout == "partition" else partition_dirs(folder)
    findings, counts, offsets = _checkpoints(folder, CHECKPOINTS if layout == "log-dir" else ())
    names = sorted({topic for topic, _ in folders})
    for topic in topics:
        if topic not in names:
            raise NotFound(f"topic '{topic}' is not in {folder}{did_you_mean(topic, names)}; check --topic")
    log_dir = folder if layout == "log-dir" else folder.parent
    is_stopped = log_dir.child(CLEAN_SHUTDOWN_FILE).exists()
    read: dict[TopicPartition, KafkaPartition] = {}
    notes: list[Finding] = []
    for key in sorted(folders):
        if topics and key[0] not in topics:
            continue
        say(f"reading {folders[key].name}")
        log_start = offsets.get(LOG_STARTS_FILE, {}).get(key)
        cleaned = offsets.get(CLEANER_OFFSETS_FILE, {}).get(key, 0) if layout == "log-dir" else None
        read[key] = partition = KafkaPartition(folders[key], folder, cleaned, env, is_stopped)
        partition.read(log_start or 0)
        _check_bounds(key, partition, offsets)
        findings += partition.findings
        notes += partition.notes
        counts += partition.counts
    findings += _ids(read, folder)
    exported = {GROUPS_FILE, *map(properties_name, names)}
    unreferenced, foreign = _other_files(folder, layout, read, exported, env.wall_ms())
    counts += CheckCounts(topics=len({topic for topic, _ in read}))
    seconds = (env.boot_ms() - started_ms) / 1000
    unique = tuple(dict.fromkeys(findings))
    return Report(str(folder), unique, unreferenced, foreign, counts, seconds=seconds, notes=tuple(notes))


class Checkpoints(NamedTuple):
    """The offsets in each checkpoint file of a log directory, and the findings about these files."""

    findings: list[Finding]
    counts: CheckCounts
    offsets: dict[str, dict[TopicPartition, int]]


def _checkpoints(folder: FilePath, names: Sequence[str]) -> Checkpoints:
    findings: list[Finding] = []
    counts = CheckCounts()
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name in names:
        data = folder.child(name).data()
        if data is None:
            continue
        counts += CheckCounts(files=1, nbytes=len(data))
        try:
            offsets[name] = checkpoint_files.parse_offsets(data, file=name)
        except Corrupt as error:
            findings.append(Finding.of(CHECKPOINT, error, name, REPLICA))
            continue
        if data and checkpoint_files.offsets_to_bytes(offsets[name]) != data:
            findings.append(Finding(CHECKPOINT, name, WRONG_FORMAT, REPLICA))
    return Checkpoints(findings, counts, offsets)


def _check_bounds(
    key: TopicPartition, partition: KafkaPartition, offsets: dict[str, dict[TopicPartition, int]]
) -> None:
    """Report negative offsets in checkpoint files as findings, and offsets beyond the log end as notes."""
    # If all records below a new log start were deleted, the log ends at the log start.
    end = max(partition.log_end, offsets.get(LOG_STARTS_FILE, {}).get(key, 0))
    for name, values in offsets.items():
        offset = values.get(key, 0)
        log_end = partition.log_end if name == LOG_STARTS_FILE else end
        message = f"the file has offset {offset} for {key[0]}-{key[1]}, but the log ends at {log_end}"
        if offset < 0:
            partition.findings.append(Finding(CHECKPOINT, name, message, REPLICA, offset=offset))
        elif offset > log_end:
            message += "; either Kafka has truncated the log, or the end of the log is lost"
            partition.notes.append(Finding(CHECKPOINT, name, message, COMPARE, offset=offset))


def _ids(read: dict[TopicPartition, KafkaPartition], root: FilePath) -> list[Finding]:
    wrong = []
    for topic in sorted({name for name, _ in read}):
        partitions = ((key, partition.topic_id) for key, partition in read.items() if key[0] == topic)
        ids = {key: topic_id for key, topic_id in partitions if topic_id is not None}
        common = Counter(ids.values()).most_common()
        if len(common) > 1:
            for key, topic_id in ids.items():
                if topic_id != common[0][0] or common[0][1] == common[1][1]:
                    file = relative(read[key].folder.child(checkpoint_files.PARTITION_METADATA_FILE), root)
                    message = f"topic '{topic}' has id {topic_id} here and {common[0][0]} in another partition"
                    wrong.append(Finding(CHECKPOINT, file, message, REPLICA))
    return wrong


def _other_files(
    folder: FilePath, layout: str, read: dict[TopicPartition, KafkaPartition], exported: Set[str], now_ms: int
) -> tuple[tuple[UnreferencedFile, ...], tuple[UnreferencedFile, ...]]:
    """Return the temporary files of Kafka, and the files that neither Kafka nor an export (`exported`) writes."""
    unreferenced: list[UnreferencedFile] = []
    foreign: list[UnreferencedFile] = []

    def note(path: FilePath, why: str | None) -> None:
        with suppress(FileNotFoundError):
            stat = path.stat()
            age = max(0, now_ms - stat.st_mtime_ns // 1_000_000)
            reason = why or "Kafka does not use file names of this form"
            (unreferenced if why else foreign).append(
                UnreferencedFile(relative(path, folder), stat.st_size, age, reason)
            )

    for partition in read.values():
        is_swapping = any(".log" + SWAP in name for name in partition.names)
        for name in sorted(set(partition.folder.names()) - partition.names):
            is_temporary = name.endswith(TEMPORARY_SUFFIXES) or (is_swapping and SEGMENT_FILE.match(name) is not None)
            note(
                partition.folder.child(name),
                "temporary file that the broker deletes or renames" if is_temporary else None,
            )
    if layout == "log-dir":
        partitions = {partition.folder.name for partition in read.values()}
        for name in sorted(set(folder.names()) - KNOWN_FILES - exported - partitions):
            path = folder.child(name)
            if not path.is_directory():
                note(path, None)
            elif name.endswith(TEMPORARY_FOLDERS):
                note(path, "a partition directory that the broker deletes or moves")
    return tuple(unreferenced), tuple(foreign)
