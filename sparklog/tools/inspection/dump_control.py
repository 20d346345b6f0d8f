"""What a control record says, as Kafka's tool prints it.

End-of-transaction markers are in every topic with transactions; the others are in Kafka's metadata log, whose schemas
are those of the message definitions of Kafka 4.1.0.
"""

from __future__ import annotations

import struct

from sparklog.errors import Corrupt
from sparklog.format import control
from sparklog.format.coordinators.message_schema import ENDS_EARLY, Field, Struct, decode_from, json_fields, json_text
from sparklog.tools.inspection.dump_halt import INVALID_RECORD, RUNTIME, UNDERFLOW, Halt

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = Field("version", "int16")
_ENDPOINT = Struct("Endpoint", (Field("name", "string"), Field("host", "string"), Field("port", "uint16")))
_FEATURE = Struct("KRaftVersionFeature", (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")))
_VOTER = Struct(
    "Voter",
    (
        Field("voterId", "int32"),
        Field("voterDirectoryId", "uuid"),
        Field("endpoints", _ENDPOINT, array=True),
        Field("kRaftVersionFeature", _FEATURE),
    ),
)
_RECORDS = {
    control.SNAPSHOT_HEADER: (
        "SnapshotHeader",
        Struct("SnapshotHeaderRecord", (_VERSION, Field("lastContainedLogTimestamp", "int64")), flexible=0),
    ),
    control.SNAPSHOT_FOOTER: ("SnapshotFooter", Struct("SnapshotFooterRecord", (_VERSION,), flexible=0)),
    control.KRAFT_VERSION: (
        "KRaftVersion",
        Struct("KRaftVersionRecord", (_VERSION, Field("kRaftVersion", "int16")), flexible=0),
    ),
    control.KRAFT_VOTERS: (
        "KRaftVoters",
        Struct("VotersRecord", (_VERSION, Field("voters", _VOTER, array=True)), flexible=0),
    ),
}


def control_text(key: bytes | None, value: bytes | None) -> str:
    """What follows a control record's other fields. `Halt` where Kafka's tool dies of it."""
    kind, number = _kind(key)
    if kind in (control.ABORT, control.COMMIT):
        version, epoch = _marker(value)
        if version < 0:
            said = f"Invalid version found for end transaction marker: {version}. May indicate data corruption"
            raise Halt(INVALID_RECORD, said)
        return f" endTxnMarker: {'COMMIT' if kind == control.COMMIT else 'ABORT'} coordinatorEpoch: {epoch}"
    if kind in _RECORDS:
        name, schema = _RECORDS[kind]
        try:
            fields, _ = decode_from(schema, 0, value or b"")
        except Corrupt as error:
            raise Halt(UNDERFLOW if error.message == ENDS_EARLY else RUNTIME, error.message) from None
        return f" {name} {json_text(json_fields(schema, 0, fields))}"
    return f" controlType: {'LEADER_CHANGE' if kind == control.LEADER_CHANGE else 'UNKNOWN'}({number})"


def _kind(key: bytes | None) -> tuple[int, int]:
    """The type of a control record, and its number as it stands there."""
    if key is None:
        raise Halt("java.lang.NullPointerException")
    if len(key) < _KEY.size:
        said = "Invalid value size found for end control record key. Must have at least 4 bytes, but found only"
        raise Halt(INVALID_RECORD, f"{said} {len(key)}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise Halt(INVALID_RECORD, f"Invalid version found for control record: {version}. May indicate data corruption")
    return control.parse_control_type(key), int(number)


def _marker(value: bytes | None) -> tuple[int, int]:
    if value is None:
        raise Halt("java.lang.NullPointerException")
    if len(value) < _VALUE.size:
        raise Halt(UNDERFLOW)
    version, epoch = _VALUE.unpack_from(value)
    return int(version), int(epoch)
