"""Read topics' configs from Kafka's metadata log, and choose those that an imported topic gets.

A KRaft broker keeps a copy of the cluster's metadata as `__cluster_metadata-0` in one of its log dirs: a log of records
and, from time to time, a snapshot of all that is in force (`<offset>-<epoch>.checkpoint`, a log too, without offsets of
its own). The newest snapshot counts, then the log from its offset on. A record's value is three uvarints (version of
this frame, number of the record's type, version of the record) and the record. Of its types these matter:

| type | record            | fields                                                                          |
|------|-------------------|---------------------------------------------------------------------------------|
| 2    | TopicRecord       | name, topic id                                                                  |
| 4    | ConfigRecord      | type of the resource (2: a topic), its name, a config's name, its value or null |
| 9    | RemoveTopicRecord | topic id: its configs are gone with it                                          |

Defaults of the brokers (`log.retention.ms` in their properties file) are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_codec import decode, uvarints
from sparklog.format.coordinators.message_schema import Field, Struct
from sparklog.format.window import Window
from sparklog.kafka.importing.coordinators import LogDir, LogReading
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place.directory import CLUSTER_METADATA, SegmentName, settled_segments
from sparklog.kafka.in_place.segment_recovery import FAIL, Skipped
from sparklog.log.state.configs import CONFIGS, TopicConfigs, check_delete_delay

TOPIC, CONFIG, REMOVE_TOPIC = 2, 4, 9
OF_A_TOPIC = 2
_RECORDS: Mapping[int, Struct] = {
    TOPIC: Struct("TopicRecord", (Field("name", "string"), Field("topicId", "uuid")), flexible=0),
    CONFIG: Struct(
        "ConfigRecord",
        (
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("name", "string"),
            Field("value", "string", nullable=True),
        ),
        flexible=0,
    ),
    REMOVE_TOPIC: Struct("RemoveTopicRecord", (Field("topicId", "uuid"),), flexible=0),
}
_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's internal override of `segment.bytes`, whose least value is 1 MiB."""
NAMES = {INTERNAL_SEGMENT_BYTES: "segment.bytes"}


@dataclass(frozen=True, slots=True)
class TakenConfigs:
    """Configs of a topic in Kafka that it gets here too, and those that it does not, with the reason."""

    taken: Mapping[str, str]
    left_out: Mapping[str, str]


@dataclass(slots=True)
class MetadataLog(LogReading):
    """The metadata log up to where it was read: ids and configs by the names of topics."""

    ids: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    since: int = 0

    def add(self, window: Window) -> None:
        records = window.decode(("value",), ~window.headers.is_control & (window.headers.count > 0))
        if records.value is None:
            return
        for offset, value in zip(records.offset.tolist(), records.value.to_pylist(), strict=True):
            if value and offset >= self.since:
                try:
                    self._take(value)
                except Corrupt as error:
                    self._refuse(window.file, offset, error)

    def _take(self, value: bytes) -> None:
        (_, kind, version), body = uvarints(value, 3)
        if kind not in _RECORDS:
            return
        if version > _RECORDS[kind].highest:
            raise Corrupt(f"expected a {_RECORDS[kind].name} of version 0, found {version}")
        fields = decode(_RECORDS[kind], version, body)
        if kind == TOPIC:
            self.ids[fields["name"]] = fields["topicId"]
        elif kind == REMOVE_TOPIC:
            for name in [name for name, topic_id in self.ids.items() if topic_id == fields["topicId"]]:
                del self.ids[name]
                self.configs.pop(name, None)
        elif fields["resourceType"] == OF_A_TOPIC:
            configs = self.configs.setdefault(fields["resourceName"], {})
            if fields["value"] is None:
                configs.pop(fields["name"], None)
            else:
                configs[fields["name"]] = fields["value"]

    def _refuse(self, path: str, offset: int, error: Corrupt) -> None:
        if self.log_dir.policy == FAIL:
            raise Corrupt(
                f"a record of Kafka's metadata log cannot be read: {error.message}; give the topics' configs yourself,"
                " and import with corrupt_records skip",
                file=path,
                offset=offset,
            ) from None
        why = f"it cannot be read: {error.message}"
        self.log_dir.on_skipped(Skipped(self.topic, self.partition, path, None, 0, offset, offset + 1, why))


def read_metadata(log_dir: LogDir) -> MetadataLog | None:
    """Read the metadata log of a log dir; None if it has none."""
    folder = directory.partition_folders(log_dir.path).get((CLUSTER_METADATA, 0))
    if folder is None:
        return None
    metadata = MetadataLog(log_dir, CLUSTER_METADATA, 0)
    snapshots = sorted(filter(_SNAPSHOT.fullmatch, folder.names()))
    segments = settled_segments(folder, env=log_dir.env)
    if snapshots:
        file = folder.child(snapshots[-1])
        metadata.load((SegmentName(0, file, file.stat().st_ino),))
        metadata.since = int(snapshots[-1].partition("-")[0])
    metadata.load(segments)
    return metadata


def configs_to_take(metadata: MetadataLog, topic: str, topic_id: str, *, force: bool) -> TakenConfigs | None:
    """Choose a topic's configs; None if the metadata log does not know this topic, or another one of its name."""
    metadata_id = metadata.ids.get(topic)
    if metadata_id is None or (topic_id and metadata_id != topic_id):
        return None
    taken: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, value in sorted(metadata.configs.get(topic, {}).items()):
        here = NAMES.get(name, name)
        try:
            if here not in CONFIGS:
                raise BadRequest(f"{name} is no config here")
            explicit = TopicConfigs.of({here: value}).explicit
            check_delete_delay(dict(explicit), force)
            taken.update(explicit)
        except BadRequest as error:
            left_out[name] = str(error)
    return TakenConfigs(taken, left_out)
