"""A Kafka log directory, or one partition folder of it, verified in place. Nothing is written.

Most of Kafka's small files have no checksum. Some of their numbers cannot be compared with anything: those in the log
dir's checkpoint files, and the id in `partition.metadata` where a topic has one partition here.
A number above the log's end is no damage by itself: where Kafka cuts a log, after an unclean stop or to follow another
leader, it writes some of these files later and others never. But it is noted, for a lost end looks the same.
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
    partition_folders,
    properties_name,
    split_folder_name,
)
from sparklog.kafka.in_place.files import DELETED, AnyPath, FilePath, file_path, relative
from sparklog.kafka.in_place.segment_file import CLEANED, SWAP
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.verification.findings import CHECKPOINT, CheckCounts, Finding, Orphan, Report
from sparklog.tools.verification.kafka_partition import COMPARE, REPLICA, KafkaPartition
from sparklog.tools.verification.run import Say

CHECKPOINTS = (
    *(LOG_STARTS_FILE, checkpoint_files.HIGH_WATERMARKS_FILE),
    *(checkpoint_files.RECOVERY_POINTS_FILE, CLEANER_OFFSETS_FILE),
)
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
KNOWN = frozenset({*CHECKPOINTS, "meta.properties", "bootstrap.checkpoint", ".lock", CLEAN_SHUTDOWN_FILE})
LEFT = (DELETED, CLEANED, SWAP)
SEGMENT_FILE = re.compile(r"\d{20}\.(?:log|index|timeindex|txnindex)")
"""Files that a swap replaces: where one is there, they do not count."""
LEFT_FOLDERS = ("-delete", "-future", "-stray")


def verify_log_dir(
    path: AnyPath, *, topics: Sequence[str] = (), say: Say = lambda line: None, env: Env = SYSTEM
) -> Report:
    """Read a Kafka log directory or partition folder whole. `NotFound` if it is neither, or lacks a topic named."""
    folder = file_path(path)
    layout = kafka_layout(folder)
    if layout is None:
        message = f"{folder} is no Kafka directory: it has no folders like orders-0 with .log files; check the path"
        raise NotFound(message)
    begun = env.boot_ms()
    folders = {split_folder_name(folder): folder} if layout == "partition" else partition_folders(folder)
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
        read[key] = part = KafkaPartition(folders[key], folder, cleaned, env, is_stopped)
        part.read(log_start or 0)
        _check_bounds(key, part, offsets)
        findings += part.findings
        notes += part.notes
        counts += part.counts
    findings += _ids(read, folder)
    exported = {GROUPS_FILE, *map(properties_name, names)}
    orphans, foreign = _others(folder, layout, read, exported, env.wall_ms())
    counts += CheckCounts(topics=len({topic for topic, _ in read}))
    seconds = (env.boot_ms() - begun) / 1000
    unique = tuple(dict.fromkeys(findings))
    return Report(str(folder), unique, orphans, foreign, counts, seconds=seconds, notes=tuple(notes))


class Checkpoints(NamedTuple):
    """The checkpoint files of a log directory: their damage, and the offsets in each."""

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
            findings.append(Finding(CHECKPOINT, name, "it is not written as Kafka writes it", REPLICA))
    return Checkpoints(findings, counts, offsets)


def _check_bounds(key: TopicPartition, part: KafkaPartition, offsets: dict[str, dict[TopicPartition, int]]) -> None:
    """Find offsets in checkpoint files that no log has, and note those that this one does not reach."""
    # A log that was emptied, and whose start moved, ends where it starts.
    end = max(part.log_end, offsets.get(LOG_STARTS_FILE, {}).get(key, 0))
    for name, values in offsets.items():
        offset = values.get(key, 0)
        reached = part.log_end if name == LOG_STARTS_FILE else end
        message = f"it says offset {offset} of {key[0]}-{key[1]}, whose log ends at {reached}"
        if offset < 0:
            part.findings.append(Finding(CHECKPOINT, name, message, REPLICA, offset=offset))
        elif offset > reached:
            message += ": Kafka leaves it so where it has cut the log, or the end of the log is lost"
            part.notes.append(Finding(CHECKPOINT, name, message, COMPARE, offset=offset))


def _ids(read: dict[TopicPartition, KafkaPartition], root: FilePath) -> list[Finding]:
    wrong = []
    for topic in sorted({name for name, _ in read}):
        ids = {key: part.topic_id for key, part in read.items() if key[0] == topic and part.topic_id is not None}
        usual = Counter(ids.values()).most_common()
        if len(usual) > 1:
            for key, topic_id in ids.items():
                if topic_id != usual[0][0] or usual[0][1] == usual[1][1]:
                    file = relative(read[key].folder.child(checkpoint_files.PARTITION_METADATA_FILE), root)
                    message = f"topic '{topic}' has id {topic_id} here and {usual[0][0]} in another partition"
                    wrong.append(Finding(CHECKPOINT, file, message, REPLICA))
    return wrong


def _others(
    folder: FilePath, layout: str, read: dict[TopicPartition, KafkaPartition], exported: Set[str], now_ms: int
) -> tuple[tuple[Orphan, ...], tuple[Orphan, ...]]:
    """Return the other files: Kafka's left-overs, and files that neither it nor an export (`exported`) writes."""
    orphans: list[Orphan] = []
    foreign: list[Orphan] = []

    def note(path: FilePath, why: str | None) -> None:
        with suppress(FileNotFoundError):
            stat = path.stat()
            age = max(0, now_ms - stat.st_mtime_ns // 1_000_000)
            orphan = Orphan(relative(path, folder), stat.st_size, age, why or "Kafka gives no such name")
            (orphans if why else foreign).append(orphan)

    for part in read.values():
        swapping = any(".log" + SWAP in name for name in part.names)
        for name in sorted(set(part.folder.names()) - part.names):
            left = name.endswith(LEFT) or (swapping and SEGMENT_FILE.match(name) is not None)
            note(part.folder.child(name), "the broker removes or finishes it" if left else None)
    if layout == "log-dir":
        partitions = {part.folder.name for part in read.values()}
        for name in sorted(set(folder.names()) - KNOWN - exported - partitions):
            path = folder.child(name)
            if not path.is_folder():
                note(path, None)
            elif name.endswith(LEFT_FOLDERS):
                note(path, "a partition folder that the broker removes or moves")
    return tuple(orphans), tuple(foreign)
