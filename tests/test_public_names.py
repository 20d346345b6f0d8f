"""Test the public names of the objects that users open. Each name is on a page of the Python API."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import sparklog
from sparklog.testing import World

READ = {"bounds", "get", "name", "offset_for_timestamp", "record_at", "scan", "table"}
ARROW = {"schema", "to_batches", "to_reader", "to_table"}
NAMES = {
    "Root": {
        *("alter_defaults", "create_topic", "defaults", "delete_topic", "ensure_topic", "topic", "topics"),
        # The components of a root, and the entry point for engines.
        *("engine", "env", "id", "location", "store"),
    },
    "Topic": {
        *READ,
        *("alter", "append", "count", "delete", "delete_records", "describe", "end_kafka_transactions"),
        *("plan_alter", "plan_delete_records"),
        *("log", "root", "store"),
    },
    "TopicReader": READ,
    "View": {"location", "topic", "topics"},
    "Scan": {*ARROW, "batch_bytes", "columns", "keys", "noun", "parts", "ranges", "threads"},
    "TopicTable": {*ARROW, "follow", "noun", "open_view", "plan"},
    "TransactionalProducer": {"begin", "epoch", "id", "instance", "join", "log", "root", "timeout_ms"},
    "Transaction": {
        *("abort", "append", "commit", "id", "n", "prepare", "send_offsets", "state"),
        *("add", "discard"),
    },
    "Consumer": {
        *("assign", "assignment", "pause", "paused", "resume", "subscribe", "subscription", "unsubscribe"),
        *("beginning_offsets", "end_offsets", "offsets_for_times"),
        *("close", "commit", "commit_async", "committed", "group_metadata", "poll", "position", "positions", "wakeup"),
        *("seek", "seek_to_beginning", "seek_to_committed", "seek_to_end", "seek_to_timestamp"),
        *("auto_commit_interval_ms", "group", "isolation", "max_poll_records", "membership", "topics"),
    },
    "Producer": {
        *("abort_transaction", "begin_transaction", "client_id", "close", "commit_transaction", "flush"),
        *("last_sequence", "partitions_for", "send", "send_many", "send_offsets_to_transaction"),
    },
    "RecordFuture": {
        *("add_callback", "add_done_callback", "add_errback", "cancel", "cancelled", "done", "exception", "get"),
        *("result", "running", "set_exception", "set_result", "set_running_or_notify_cancel"),
    },
    "Groups": {"descriptions", "group", "names", "root", "states"},
}


def opened() -> Iterator[object]:
    root = World().root()
    topic = root.create_topic("t")
    topic.append(pa.table({"key": ["a"], "value": ["1"]}))
    yield from (root, topic, topic.scan(), topic.table(), sparklog.Groups(root))
    producer = sparklog.transactional(root, "job")
    yield from (producer, producer.begin(), sparklog.consumer(root, "g", topics="t"))
    with sparklog.producer(root) as sender:
        yield from (sender, sender.send("t", "1"))


def test_public_names_match_the_list(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("root") / "log"
    sparklog.open(place, create=True).create_topic("t")
    view = sparklog.open_view(place)
    shown = {
        type(thing).__name__: {name for name in dir(thing) if not name.startswith("_")}
        for thing in (*opened(), view, view.topic("t"))
    }
    assert shown == NAMES
