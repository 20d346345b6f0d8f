"""The lag of each client counts all offsets up to the end of its isolation level, even offsets without visible records.

    offset   0  1 2 3 4  5  6  7       8  9        10  11
    record   a  (gap)    b  c  abort   d  commit   e   f

Compaction left the gap, and the transaction of e is open. Therefore the log end offset is 12, and the last stable
offset is 10.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.clients.consumer.consumer import consumer
from sparklog.datasource.stream_plan import StreamPlanner
from sparklog.datasource.watch import source_lags
from sparklog.groups.lag import Groups, lag
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.opening import ROOT
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from tests.datasource.test_stream_plan import planner
from tests.kafka.logs import batch, marker, write_partition
from tests.serve.wire import Wire
from tests.support.command_line import invoke

ABORTED, COMMITTED, OPEN = 1, 2, 3
LOG = (
    batch(0, [b"a"])
    + batch(5, [b"b"])
    + batch(6, [b"c"], producer=ABORTED)
    + marker(7, ABORTED, commit=False)
    + batch(8, [b"d"], producer=COMMITTED)
    + marker(9, COMMITTED, commit=True)
    + batch(10, [b"e"], producer=OPEN)
    + batch(11, [b"f"])
)
ENDS = {READ_UNCOMMITTED: 12, READ_COMMITTED: 10}
VISIBLE = {READ_UNCOMMITTED: "abcdef", READ_COMMITTED: "abd"}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    write_partition(tmp_path / "kafka", "t-0", {0: LOG})
    root = open_root(tmp_path / "root", create=True)
    import_log_dir(root, tmp_path / "kafka", ImportOptions(configs={"retention.ms": "-1"}))
    return root


@pytest.mark.parametrize("isolation", ENDS)
def test_lag_of_a_consumer(root: Root, isolation: Any) -> None:
    """The lag of the consumer is `end_offsets` minus `position`.

    The lag of the group refers to the log end for both isolation levels.
    """
    found = ""
    with consumer(root, "g", topics="t", auto_offset_reset="earliest", isolation_level=isolation) as reader:
        while len(found) < len(VISIBLE[isolation]):
            for records in reader.poll(timeout=5.0):
                found += b"".join(records.column("value").to_pylist()).decode()
        reader.poll(timeout=0)
        assert found == VISIBLE[isolation]
        assert reader.end_offsets({"t": [0]}) == {("t", 0): ENDS[isolation]}
        assert reader.position("t", 0) == ENDS[isolation]
        reader.commit()
    (row,) = lag(root, ["g"])
    assert (row.current_offset, row.log_end, row.lag) == (ENDS[isolation], 12, 12 - ENDS[isolation])


def test_the_groups_command(root: Root) -> None:
    """The 11 offsets after the first record include four offsets in the gap and two markers."""
    Groups(root).group("g").alter({"t": {0: 1}})
    described = ("groups", "describe", "g", "--root", root.location)
    (row,) = json.loads(invoke([*described, "--json"]).stdout)
    assert (row["currentOffset"], row["logEnd"], row["lag"]) == (1, 12, 11)
    assert [invoke([*described, "--max-lag", most]).exit_code for most in (11, 10)] == [0, 1]


def stream(root: Root, isolation: str, start: int) -> StreamPlanner:
    options = {"kafka.isolation.level": isolation, "startingOffsets": json.dumps({"t": {"0": start}})}
    return planner(RootView(root), None, ROOT, **options)


@pytest.mark.parametrize("isolation", ENDS)
def test_lag_of_a_stream(root: Root, isolation: str) -> None:
    """The lag is `latestOffset` minus `endOffset`. A micro-batch skips offsets without visible records."""
    plan = stream(root, isolation, 1)
    start = plan.initial()
    end: Any = plan.latest(start, limited=True)
    newest: Any = plan.report()
    assert (end["t"]["0"], newest["t"]["0"]) == (ENDS[isolation], ENDS[isolation])
    (before,) = source_lags("q", "r", 0, 0, SimpleNamespace(endOffset=start, latestOffset=newest))
    (after,) = source_lags("q", "r", 0, 0, SimpleNamespace(endOffset=end, latestOffset=newest))
    assert (before.behind, after.behind) == (ENDS[isolation] - 1, 0)


def test_a_stream_with_only_markers_is_not_behind(root: Root) -> None:
    plan = stream(root, READ_COMMITTED, 9)
    end = plan.latest(plan.initial(), limited=True)
    (item,) = source_lags("q", "r", 0, 0, SimpleNamespace(endOffset=end, latestOffset=plan.report()))
    assert item.behind == 0


def test_lag_of_a_kafka_client(root: Root) -> None:
    """Kafka's clients subtract the position from the end offset that ListOffsets returns for their isolation level."""
    Groups(root).group("g").alter({"t": {0: 1}})
    with serving(root.location, ServeOptions(listen=Address("127.0.0.1", 0))) as address:
        wire = Wire(address)
        found = {}
        for level, isolation in enumerate((READ_UNCOMMITTED, READ_COMMITTED)):
            asked = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]}
            answer = wire.ask("ListOffsets", 7, {"replicaId": -1, "isolationLevel": level, **asked})
            found[isolation] = answer["topics"][0]["partitions"][0]["offset"]
            fetched = {"topic": "t", "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}]}
            fields = {"replicaId": -1, "maxWaitMs": 0, "minBytes": 0, "maxBytes": 1 << 20, "isolationLevel": level}
            (part,) = wire.ask("Fetch", 11, {**fields, "topics": [fetched]})["responses"][0]["partitions"]
            assert (part["highWatermark"], part["lastStableOffset"]) == (12, 10)
        assert found == ENDS
        committed = wire.ask("OffsetFetch", 7, {"groupId": "g", "topics": [{"name": "t", "partitionIndexes": [0]}]})
        assert committed["topics"][0]["partitions"][0]["committedOffset"] == 1
        wire.close()
