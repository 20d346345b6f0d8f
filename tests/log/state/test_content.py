"""The content of a batch does not depend on the layout, and differs for other records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from sparklog.errors import Conflict
from sparklog.log.journal.documents import Fields
from sparklog.log.state.commit import WriterBatch
from sparklog.log.state.commit_json import WRITER_JSON
from sparklog.log.state.slices import Content, content_of
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.testing.world import World

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = Mapping[str, object]
ROWS: list[Row] = [
    {"key": b"one", "value": b"1", "partition": None, "headers": None},
    {"key": None, "value": b"anywhere", "partition": None, "headers": [{"key": "k", "value": b"vv"}]},
    {"key": b"two", "value": None, "partition": 1, "headers": []},
    {"key": None, "value": b"3", "partition": 0, "headers": [{"key": "a", "value": None}, {"key": "b", "value": b""}]},
]


def table(rows: Sequence[Row], first_ms: int = 1_700_000_000_000) -> pa.Table:
    kinds = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "headers": HEADERS}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    return pa.table({**columns, "timestamp": pa.array(range(first_ms, first_ms + len(rows)), pa.int64())})


def content(topic: Topic, *tasks: Sequence[Row], first_ms: int = 1_700_000_000_000, buffer: int = 1 << 20) -> Content:
    """Return the content of the files that tasks wrote."""
    files = []
    for number, rows in enumerate(tasks):
        writer = AppendWriter(topic.log.append_target(), WriteOptions(buffer_bytes=buffer), topic.root.env, seed=number)
        for batch in table(rows, first_ms).to_batches():
            writer.write(batch)
        files += writer.finish()
    counted = content_of({topic.name: [file.counts for file in files]})
    assert counted is not None
    return counted


@pytest.fixture
def topic() -> Topic:
    world = World()
    return world.root().create_topic("t", partitions=2)


def test_content_does_not_depend_on_the_layout(topic: Topic) -> None:
    whole = content(topic, ROWS)
    assert whole.nbytes == 3 + 1 + 8 + 1 + 2 + 3 + 1 + 1 + 1
    assert content(topic, ROWS[2:], ROWS[:2]) == whole
    assert content(topic, ROWS[::-1], first_ms=1_700_000_500_000, buffer=1) == whole
    assert content(topic, ROWS[:1], [], ROWS[1:]) == whole


def test_rows_without_key_and_partition_may_change_partition(topic: Topic) -> None:
    keyless = [{**ROWS[1], "value": b"%d" % n} for n in range(4)]
    assert content(topic, keyless) == content(topic, keyless[:1], keyless[1:2], keyless[2:])


@pytest.mark.parametrize(
    "change",
    [{"value": b"11"}, {"key": b"ones"}, {"partition": 1, "key": None}, {"headers": [{"key": "", "value": b"x"}]}],
)
def test_other_records_are_other_content(topic: Topic, change: Row) -> None:
    assert not content(topic, [{**ROWS[0], **change}, *ROWS[1:]]).matches(content(topic, ROWS))


def test_content_with_another_partition_count_is_not_comparable(topic: Topic) -> None:
    before = content(topic, ROWS)
    topic.alter(partitions=8)
    after = content(topic, ROWS)
    assert after.layout != before.layout
    assert after.matches(before)
    assert not content(topic, [{**ROWS[0], "value": b"11"}, *ROWS[1:]]).matches(before)


def test_content_is_stored_in_three_optional_fields(topic: Topic) -> None:
    whole = content(topic, ROWS)
    writer = WriterBatch("stream", "q", 1, None, 2)
    known = replace(writer, epoch=4, content=whole)
    first, stored = WRITER_JSON.to_json(writer), WRITER_JSON.to_json(known)
    assert stored == {**first, "epoch": 4, "bytes": whole.nbytes, "layout": whole.layout}
    assert not {"epoch", "bytes", "layout"} & set(first)
    assert WRITER_JSON.from_json(Fields(stored, "k", "w")) == known
    assert WRITER_JSON.from_json(Fields(first, "k", "w")) == writer


def test_a_replay_with_the_same_number_of_other_records_is_rejected(topic: Topic) -> None:
    """A checkpoint was restored to before the batch was planned, and the same limit ends the larger backlog at another
    offset.
    """
    first, second = ({**ROWS[3], "partition": number, "headers": None} for number in range(2))
    key = WriterKey("q", 0, run="r")
    assert not topic.append(table([first, second]), writer=key).skipped
    assert topic.append(table([second, first], 1_700_000_900_000), writer=replace(key, run="r2")).skipped
    with pytest.raises(Conflict, match=r"^replay mismatch: .* 2 records, 2 bytes, .* with 2, 2 bytes in other"):
        topic.append(table([first, first]), writer=replace(key, run="r2"))
    with pytest.raises(Conflict, match=r"^replay mismatch: .* 2 records, 3 bytes, .* with 2, 2 bytes \(version 1\)"):
        topic.append(table([first, {**second, "value": b"33"}]), writer=replace(key, run="r2"))
    assert topic.append(table([first, first]), writer=replace(key, run="r2", replay_mismatch="accept")).skipped
    assert topic.log.state().log_end.tolist() == [1, 1]
