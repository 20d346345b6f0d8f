"""Test logs whose offsets are near 2^63, in place and imported. The largest int64 is not a valid offset."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest, Corrupt
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.view import READ_COMMITTED, LogView, OffsetRange
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.tools.verification.run import verify_root
from tests.kafka.logs import HOUR_MS, keyed_batch, write_partition
from tests.kafka_tools import KafkaTools
from tests.support.compaction import compact_topic

END = 2**63 - 1
"""The greatest log end, which is one above the greatest offset."""
ITEMS = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def spanning(base: int, last: int) -> bytes:
    """Return three records in a batch that ends at `last`, as a cleaner leaves it."""
    data = bytearray(keyed_batch(base, ITEMS))
    struct.pack_into(">i", data, 23, last - base)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


LOGS = {
    "old-bound": ({END - 2**31 + 1: keyed_batch(END - 2**31 + 1, ITEMS)}, END - 2**31 + 4),
    "last": ({END - 3: keyed_batch(END - 3, ITEMS)}, END),
    "wide": ({END - 2**31: spanning(END - 2**31, END - 1)}, END),
    "gaps": (
        {
            0: keyed_batch(0, ITEMS),
            END - 2**31: keyed_batch(END - 2**31, ITEMS),
            END - 9: keyed_batch(END - 9, ITEMS) + keyed_batch(END - 3, ITEMS),
        },
        END,
    ),
}
BEYOND = {
    "alone": {END - 2: keyed_batch(END - 2, ITEMS)},
    "behind": {0: keyed_batch(0, ITEMS), END - 2: keyed_batch(END - 2, ITEMS)},
    "wide": {END - 2**31 + 1: spanning(END - 2**31 + 1, END)},
}


def offsets(view: LogView, column: str = "key") -> list[int]:
    """Return the offsets of all records, read with and without decoding the batches."""
    view.refresh(["t"])
    limits = view.bounds("t")[0]
    parts = view.plan([OffsetRange("t", 0, limits.log_start, limits.log_end)], READ_COMMITTED)
    found, cheap = (
        [offset for part in parts for batch in part.read(columns) for offset in batch.column("offset").to_pylist()]
        for columns in (("offset", "key"), ("offset",))
    )
    assert found == cheap
    return found


def expected(segments: dict[int, bytes]) -> list[int]:
    bases = [*segments, *([END - 3] if len(segments) == 3 else [])]
    return [base + record for base in bases for record in range(3)]


def imported(folder: Path, segments: dict[int, bytes], **configs: str) -> Root:
    write_partition(folder / "kafka", "t-0", segments)
    root = open_root(folder / "root", create=True)
    import_log_dir(root, folder / "kafka", ImportOptions(configs=configs))
    return root


@pytest.mark.parametrize("name", LOGS)
def test_log_near_the_maximum_offset_is_read_in_place(name: str, tmp_path: Path) -> None:
    segments, end = LOGS[name]
    write_partition(tmp_path, "t-0", segments)
    for policy in ("fail", "skip", "truncate"):
        view = KafkaView(tmp_path, corrupt_records=policy)
        assert offsets(view) == expected(segments)
        assert view.bounds("t")[0].log_end == end
    times = view.offsets_for_timestamps("t", {0: HOUR_MS})
    assert times[0] is not None
    assert times[0].offset == expected(segments)[0]


@pytest.mark.parametrize("name", LOGS)
def test_log_near_the_maximum_offset_is_imported_and_maintained(name: str, tmp_path: Path) -> None:
    segments, end = LOGS[name]
    root = imported(tmp_path, segments, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    view = RootView(root)
    assert offsets(view) == expected(segments)
    assert view.bounds("t")[0].log_end == end
    report = compact_topic(root.topic("t"), Settings(now_ms=HOUR_MS * 2), InProcess(), CompactOptions(roll=True))
    assert not report.failures
    assert offsets(view) == expected(segments)[-3:]
    assert view.bounds("t")[0].log_end == end
    assert not verify_root(root.store).findings


def test_gaps_of_several_partitions_are_counted(tmp_path: Path) -> None:
    for partition in (1, 2):
        write_partition(tmp_path / "kafka", f"t-{partition}", LOGS["gaps"][0])
    root = imported(tmp_path, LOGS["gaps"][0])
    assert verify_root(root.store).counts.gaps == 3 * (END - 15), "those within a slice are not counted"


@pytest.mark.parametrize("name", BEYOND)
def test_batch_beyond_the_maximum_offset_is_corrupt(name: str, tmp_path: Path) -> None:
    write_partition(tmp_path / "kafka", "t-0", BEYOND[name])
    with pytest.raises(Corrupt, match="the offsets of the batch exceed 9223372036854775806"):
        offsets(KafkaView(tmp_path / "kafka"))
    with pytest.raises(Corrupt, match="the offsets of the batch exceed 9223372036854775806"):
        import_log_dir(open_root(tmp_path / "root", create=True), tmp_path / "kafka")
    for policy in ("skip", "truncate"):
        whole = [0, 1, 2] if name == "behind" else []
        assert offsets(KafkaView(tmp_path / "kafka", corrupt_records=policy, on_skipped=lambda skipped: None)) == whole


def test_partition_without_free_offsets_rejects_records(tmp_path: Path) -> None:
    topic = imported(tmp_path, {END - 5: keyed_batch(END - 5, ITEMS)}).topic("t")
    with pytest.raises(
        BadRequest, match=f"partition 0 of topic 't' ends at offset {END - 2}; 3 more offsets would exceed"
    ):
        topic.append(pa.table({"value": [b"v"] * 3}))
    topic.append(pa.table({"value": [b"v"] * 2}))
    assert offsets(RootView(open_root(tmp_path / "root")))[-2:] == [END - 2, END - 1]
    with pytest.raises(BadRequest, match=f"ends at offset {END}; 1 more offsets would exceed"):
        topic.append(pa.table({"value": [b"v"]}))


@pytest.mark.slow
def test_kafka_reads_these_batches(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    for name, (segments, _) in LOGS.items():
        write_partition(tmp_path, f"{name}-0", segments)
    logs = sorted(tmp_path.glob("*/*.log"))
    dumped = kafka_tools.dump(logs, "--deep-iteration")
    found = {
        name: [r.offset for log in logs if log.parent.name == f"{name}-0" for r in dumped.records(log)] for name in LOGS
    }
    assert found == {name: expected(segments) for name, (segments, _) in LOGS.items()}
