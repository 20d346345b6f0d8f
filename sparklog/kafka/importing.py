"""Topics of a Kafka log dir become topics of a root, with all that Kafka's files say of them.

Kept: offsets and log starts, batches byte for byte (closed segments as they are, with their indexes), the cleaner's
checkpoint, leader epochs (what is appended later has the next one). Not in the files and so given by the caller: topic
configs. A topic is there whole or not at all: all of its partitions are copied and checked before it is created.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, LOG_STARTS_FILE
from sparklog.kafka import directory
from sparklog.kafka.damage import FAIL, OnSkipped, check_policy, log_skipped
from sparklog.kafka.import_partition import PartitionSource, Target, copy_partition
from sparklog.log.configs import TopicConfigs, check_delete_delay
from sparklog.log.imports import ImportedPartition, ImportIntent
from sparklog.log.names import check_topic_name, did_you_mean
from sparklog.log.root import Root

__all__ = ["import_log_dir"]

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's own override of `segment.bytes`, which it lets nobody set below 1 MiB."""
SLICES_PER_COMMIT = 10_000
KEEP, ABORT, REFUSE = OPEN_CHOICES = ("keep", "abort", "refuse")
"""What an import does with transactions that are open in Kafka."""


@dataclass(frozen=True, slots=True)
class _TopicSource:
    name: str
    partitions: tuple[PartitionSource, ...]


def import_log_dir(
    root: Root,
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    configs: Mapping[str, object] | None = None,
    force: bool = False,
    corrupt_records: str = FAIL,
    on_skipped: OnSkipped = log_skipped,
    open_transactions: str = KEEP,
) -> list[str]:
    """Import topics of the log dir at `path` (None: all but Kafka's internal ones); their names, sorted.

    `configs` are set on each of them; `force` as in `Root.create_topic`. `corrupt_records` says what damage does:
    `fail`, `skip` (what is damaged is left out) or `truncate` (what Kafka would keep after an unclean shutdown with
    recovery point 0: a partition ends in front of its first damage); `on_skipped` is told what is not imported, bytes
    behind the log's end included (by default a warning is logged). `open_transactions`: what becomes of those that
    Kafka has not ended: `keep` (they hold back the last stable offset until they are ended or the topic is appended
    to), `abort`, or `refuse` (`Conflict`). `NotFound` if there is no log dir or no such
    topic; `Conflict` if a topic exists; `BadRequest` for partitions that are missing in the log dir, or a config
    that is not valid; `Corrupt` with file, position and offset for damage. A topic that fails is not there; those
    imported before it stay.
    """
    check_policy(corrupt_records)
    if open_transactions not in OPEN_CHOICES:
        raise BadRequest(f"expected open transactions to be one of {', '.join(OPEN_CHOICES)}, not {open_transactions}")
    checked = _configs(configs, force)
    sources = _sources(os.path.abspath(os.fspath(path)), topics)
    for source in sources:
        check_topic_name(source.name)
        _refuse_existing(root, source.name)
    root.ensure_probed()
    for source in sources:
        _import_topic(root, source, checked, force, open_transactions, corrupt_records, on_skipped)
    return [source.name for source in sources]


def _configs(given: Mapping[str, object] | None, force: bool) -> TopicConfigs:
    configs = dict(given or {})
    if INTERNAL_SEGMENT_BYTES in configs:
        configs["segment.bytes"] = configs.pop(INTERNAL_SEGMENT_BYTES)
    checked = TopicConfigs.of(configs)
    check_delete_delay(dict(checked.explicit), force)
    return checked


def _refuse_existing(root: Root, name: str) -> None:
    if root.topic_handle(name).log.refresh().head.exists:
        raise Conflict(f"topic '{name}' exists in {root.location}; delete it first, or import into another root")


def _sources(path: str, topics: Sequence[str] | None) -> list[_TopicSource]:
    layout = directory.kafka_layout(path)
    if layout is None:
        raise NotFound(
            f"{path} is no Kafka log dir: expected folders like orders-0 with files like 00000000000000000000.log"
        )
    if layout == "partition":
        raise BadRequest(f"{path} is one partition: give the log dir it lies in, {os.path.dirname(path)}")
    folders = directory.partition_folders(path)
    names = sorted({topic for topic, _ in folders})
    chosen = sorted(set(topics)) if topics is not None else [name for name in names if not directory.is_internal(name)]
    unknown = next((name for name in chosen if name not in names), None)
    if unknown is not None:
        raise NotFound(f"there is no topic '{unknown}' in {path}{did_you_mean(unknown, names)}")
    if not chosen:
        raise NotFound(f"there are only Kafka's internal topics in {path}: name those to import, of {', '.join(names)}")
    starts = directory.offset_checkpoint(path, LOG_STARTS_FILE)
    cleaned = directory.offset_checkpoint(path, CLEANER_OFFSETS_FILE)
    return [_TopicSource(name, _partitions(path, name, folders, starts, cleaned)) for name in chosen]


def _partitions(
    path: str,
    name: str,
    folders: Mapping[tuple[str, int], str],
    starts: Mapping[tuple[str, int], int],
    cleaned: Mapping[tuple[str, int], int],
) -> tuple[PartitionSource, ...]:
    mine = {number: folder for (topic, number), folder in folders.items() if topic == name}
    numbers = sorted(mine)
    missing = next((at for at, number in enumerate(numbers) if at != number), None)
    if missing is not None:
        raise BadRequest(
            f"expected partitions 0 to {numbers[-1]} of {name} in {path}, found no {name}-{missing}: bring the folders"
            " of all partitions together first, from the brokers that hold them"
        )
    return tuple(
        PartitionSource(number, mine[number], starts.get((name, number)), cleaned.get((name, number)))
        for number in numbers
    )


def _import_topic(
    root: Root,
    source: _TopicSource,
    configs: TopicConfigs,
    force: bool,
    open_transactions: str,
    policy: str,
    on_skipped: OnSkipped,
) -> None:
    """Copy all partitions, then create the topic and name what was copied."""
    handle = root.topic_handle(source.name)
    target = Target(
        store=root.store,
        topic=source.name,
        read_version=max(handle.log.refresh().head.version, 0),
        index_interval=configs.index_interval_bytes,
        env=root.env,
        written=[],
        policy=policy,
        on_skipped=on_skipped,
    )
    created = None
    try:
        copied = [copy_partition(partition, target) for partition in source.partitions]
        if open_transactions == REFUSE:
            _refuse_open(source.name, copied)
        created = root.create_topic(
            source.name, partitions=len(source.partitions), configs=dict(configs.explicit), force=force
        )
        head = created.head(refresh=False)
        for group in _groups(copied):
            head = created.commit(ImportIntent(head.topic_id, group), head).head
        if open_transactions == ABORT and head.kafka_open:
            created.end_kafka_transactions()
    except BaseException:
        # What failed first is what there is to say; files left behind are the vacuum's.
        with suppress(SparklogError):
            if created is not None:
                created.delete()
            else:
                for key in target.written:
                    root.store.delete(key)
        raise


def _refuse_open(topic: str, copied: Sequence[ImportedPartition]) -> None:
    found = [each for part in copied for each in part.open]
    if found:
        raise Conflict(
            f"expected no open transactions in {topic}, found {len(found)}, the first is {found[0]}: end it in Kafka,"
            " or import with another choice for open transactions"
        )


def _groups(copied: Sequence[ImportedPartition]) -> Iterator[tuple[ImportedPartition, ...]]:
    """Whole partitions, as many as a commit should list."""
    group: list[ImportedPartition] = []
    slices = 0
    for part in copied:
        if group and slices + len(part.files) > SLICES_PER_COMMIT:
            yield tuple(group)
            group, slices = [], 0
        group.append(part)
        slices += len(part.files)
    yield tuple(group)
