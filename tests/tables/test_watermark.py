"""The watermark of a table: its properties, and the rules for continuing a copy from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.state.view import Bounds
from sparklog.tables.watermark import (
    COMMIT_ID,
    KEYS,
    MODE,
    NEXT_OFFSETS,
    Mode,
    TopicSnapshot,
    Watermark,
    check_watermark,
)

WATERMARK = Watermark("root-1", "orders", "topic-1", {0: 23, 10: 4}, "commit-1", "append")


def bounds(log_start: int, log_end: int) -> Bounds:
    return Bounds(log_start, log_end, log_end, log_end)


SOURCE = TopicSnapshot("root-1", "orders", "topic-1", {0: bounds(0, 30), 1: bounds(5, 9), 10: bounds(4, 4)})


def test_properties_contain_the_watermark() -> None:
    properties = WATERMARK.to_properties()
    assert properties[NEXT_OFFSETS] == '{"0":23,"10":4}'
    assert set(properties) == set(KEYS)
    assert Watermark.from_properties({"owner": "anna", **properties}, "t") == WATERMARK


def test_table_of_another_writer_has_no_watermark() -> None:
    assert Watermark.from_properties({"owner": "anna"}, "t") is None


@pytest.mark.parametrize("key", KEYS)
def test_incomplete_watermark_is_corrupt(key: str) -> None:
    properties = WATERMARK.to_properties()
    del properties[key]
    with pytest.raises(Corrupt, match=f"watermark of table t is incomplete: property {key} is missing"):
        Watermark.from_properties(properties, "t")


@pytest.mark.parametrize("key", [NEXT_OFFSETS, MODE])
@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"0":-1}', '{"0":true}', '{"0":1.5}', '{"x":1}', '{"4294967296":1}', "[" * 100_000]
)
def test_invalid_watermark_is_corrupt(key: str, text: str) -> None:
    with pytest.raises(Corrupt, match=f"property {key} of table t must be "):
        Watermark.from_properties(WATERMARK.to_properties() | {key: text}, "t")


def test_advanced_watermark_retains_other_partitions() -> None:
    after = WATERMARK.advanced({0: 30, 1: 9}, "commit-2")
    assert after == replace(WATERMARK, next_offsets={0: 30, 1: 9, 10: 4}, commit_id="commit-2")
    assert after.to_properties()[COMMIT_ID] == "commit-2"


def test_copy_continues_at_the_watermark_and_new_partitions_start_at_the_log_start() -> None:
    assert check_watermark("t", WATERMARK, SOURCE, "append") == replace(WATERMARK, next_offsets={0: 23, 1: 5, 10: 4})


@pytest.mark.parametrize(
    ("source", "mode", "message"),
    [
        (
            replace(SOURCE, root_id="root-2"),
            "append",
            "table t contains topic 'orders' of the root with id root-1, not topic 'orders' of the root with id root-2",
        ),
        (replace(SOURCE, topic="clicks"), "append", "not topic 'clicks' of the root with id root-1: copy each topic"),
        (SOURCE, "upsert", "written with mode append, not upsert"),
        (replace(SOURCE, topic_id="topic-2"), "append", "was deleted and recreated .* use new_topic='continue'"),
        (replace(SOURCE, bounds={0: bounds(24, 30), 10: bounds(4, 4)}), "append", "offsets 23 to 23 of orders-0 were"),
        (
            replace(SOURCE, bounds={0: bounds(0, 22), 10: bounds(4, 4)}),
            "append",
            "up to offset 23, but the log ends at",
        ),
        (replace(SOURCE, bounds={0: bounds(0, 23)}), "append", "records of orders-10, a partition that .* not have"),
    ],
)
def test_copy_is_rejected(source: TopicSnapshot, mode: Mode, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        check_watermark("t", WATERMARK, source, mode)


def test_copy_continues_with_a_topic_that_was_created_again() -> None:
    source = replace(SOURCE, topic_id="topic-2", bounds={0: bounds(7, 9)})
    after = check_watermark("t", WATERMARK, source, "append", new_topic="continue")
    assert after == replace(WATERMARK, topic_id="topic-2", next_offsets={0: 7})


def test_copy_without_the_check_for_data_loss_continues_at_the_log_start() -> None:
    source = replace(SOURCE, bounds={0: bounds(24, 30), 10: bounds(4, 4)})
    after = check_watermark("t", WATERMARK, source, "append", fail_on_data_loss=False)
    assert after.next_offsets == {0: 24, 10: 4}
