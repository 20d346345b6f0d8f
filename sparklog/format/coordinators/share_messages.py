"""Records of Kafka's `__share_group_state`: how far share groups (KIP-932) are, per group, topic id and partition.

A record's key is int16 type, then groupId (string), topicId (uuid), partition (int32); its value int16 version 0, then
a snapshot of the state (type 0) or what changed since (type 1). Schemas are those of the message definitions of Kafka
4.1.0; sparklog only prints them.
"""

from __future__ import annotations

from types import MappingProxyType

from sparklog.format.coordinators.message_schema import Field, Struct

_KEY = (Field("groupId", "string"), Field("topicId", "uuid"), Field("partition", "int32"))
_BATCH = Struct(
    "StateBatch",
    (
        Field("firstOffset", "int64"),
        Field("lastOffset", "int64"),
        Field("deliveryState", "int8"),
        Field("deliveryCount", "int16"),
    ),
)
_POSITION = (Field("leaderEpoch", "int32"), Field("startOffset", "int64"))
_BATCHES = Field("stateBatches", _BATCH, array=True)
_TIMES = (Field("createTimestamp", "int64"), Field("writeTimestamp", "int64"))

TYPES = MappingProxyType(
    {
        0: (
            Struct("ShareSnapshotKey", _KEY),
            Struct(
                "ShareSnapshotValue",
                (Field("snapshotEpoch", "int32"), Field("stateEpoch", "int32"), *_POSITION, *_TIMES, _BATCHES),
                flexible=0,
            ),
        ),
        1: (
            Struct("ShareUpdateKey", _KEY),
            Struct("ShareUpdateValue", (Field("snapshotEpoch", "int32"), *_POSITION, _BATCHES), flexible=0),
        ),
    }
)
"""Schemas of key and value by the type that a key begins with."""
