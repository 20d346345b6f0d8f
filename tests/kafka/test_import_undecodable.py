"""Test batches with a valid checksum whose records cannot be decoded: imports skip the same records
as reads in place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format.record_batch import BatchHeader
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import COLUMNS, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root
from sparklog.testing.world import World
from sparklog.tools.verification.run import verify_root
from tests.kafka.logs import HOUR_MS, batch, keyed_batch, marker, records, varint, write_partition

HEADER_BYTES = 61


def undecodable(base: int, *, codec: int = 0, headers: int = 0, producer: int = -1) -> bytes:
    """Return two records that cannot be decoded: of an unknown shape, in another codec, or with wrong headers."""
    sound = keyed_batch(base, [(b"k", b"v"), (b"k", b"v")], producer=producer)
    body = sound[HEADER_BYTES:]
    if headers:
        record = bytes((0, 0)) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(headers)
        body = (varint(len(record)) + record) * 2
    elif not codec:
        body = b"\xff" * len(body)
    header = BatchHeader(
        base_offset=base,
        last_offset_delta=1,
        count=2,
        base_timestamp=HOUR_MS,
        max_timestamp=HOUR_MS,
        attributes=codec | (16 if producer >= 0 else 0),
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
    )
    return header.pack(body)


SOUND = batch(0, [b"a", b"b"])
LOGS = {
    "in the middle": {0: SOUND + undecodable(2) + batch(4, [b"c"]), 5: batch(5, [b"d"])},
    "of a wrong codec": {0: SOUND + undecodable(2, codec=4) + batch(4, [b"c"]), 5: batch(5, [b"d"])},
    "in its headers alone": {0: SOUND + undecodable(2, headers=3) + batch(4, [b"c"]), 5: batch(5, [b"d"])},
    "several": {0: undecodable(0) + batch(2, [b"c"]) + undecodable(3) + undecodable(5), 7: batch(7, [b"d"])},
    "a whole segment": {0: SOUND, 2: undecodable(2), 4: batch(4, [b"c"])},
    "in the active segment": {0: SOUND, 2: batch(2, [b"c"]) + undecodable(3) + batch(5, [b"d"])},
    "at the end": {0: SOUND, 2: batch(2, [b"c"]) + undecodable(3)},
    "all there is": {0: undecodable(0)},
    "in a transaction": {
        0: batch(0, [b"a"], producer=7) + undecodable(1, producer=7) + marker(3, 7, commit=True),
        4: batch(4, [b"d"]),
    },
}


def imported(folder: Path, policy: str, said: list[Skipped]) -> Root:
    root = World().root()
    import_log_dir(root, folder, ImportOptions(corrupt_records=policy), on_skipped=said.append)
    return root


@pytest.mark.parametrize("name", LOGS)
def test_import_skips_the_same_records_as_reads_in_place(tmp_path: Path, name: str) -> None:
    write_partition(tmp_path, "t-0", LOGS[name])
    passed: list[Skipped] = []
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=passed.append)
    bounds = view.bounds("t")[0]
    (part,) = view.plan([OffsetRange("t", 0, bounds.log_start, bounds.log_end)], READ_UNCOMMITTED)
    in_place = [record for piece in part.read(COLUMNS) for record in records(piece)]
    said: list[Skipped] = []
    root = imported(tmp_path, SKIP, said)
    topic = root.topic("t")
    assert [
        record for piece in topic.scan(isolation_level=READ_UNCOMMITTED, columns=COLUMNS) for record in records(piece)
    ] == in_place
    state = topic.log.state()
    assert (int(state.log_start[0]), int(state.log_end[0])) == (bounds.log_start, bounds.log_end)
    assert said == passed
    assert passed
    assert not verify_root(root.store).findings


@pytest.mark.parametrize("policy", [FAIL, TRUNCATE])
def test_other_policies_reject_undecodable_batches(tmp_path: Path, policy: str) -> None:
    """Kafka's recovery verifies only checksums, so it does not truncate the log there."""
    write_partition(tmp_path, "t-0", LOGS["in the middle"])
    view = KafkaView(tmp_path, corrupt_records=policy, on_skipped=print)
    (part,) = view.plan([OffsetRange("t", 0, 0, 6)], READ_UNCOMMITTED)
    with pytest.raises(Corrupt) as in_place:
        list(part.read(COLUMNS))
    with pytest.raises(Corrupt, match="import the valid records with corrupt_records=skip") as refused:
        imported(tmp_path, policy, [])
    assert (refused.value.position, refused.value.offset) == (in_place.value.position, in_place.value.offset)


def test_intact_log_is_the_same_with_every_policy(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: SOUND + batch(2, [b"c"]), 3: batch(3, [b"d"])})
    found = []
    for policy in (FAIL, SKIP, TRUNCATE):
        slices = imported(tmp_path, policy, []).topic("t").log.snapshot().slices.all()
        found.append((slices.base.tolist(), slices.end.tolist(), slices.crc.tolist(), slices.records.tolist()))
    assert found[0] == found[1] == found[2]
