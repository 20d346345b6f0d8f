"""The description of the cluster: servers and their node ids."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import sparklog
from sparklog.serve.codes import Code
from sparklog.serve.options import Address, node_ids
from tests.serve.wire import Wire


def hosts(*names: str) -> list[Address]:
    return [Address(name, 9092) for name in names]


def test_node_ids_are_small_and_the_same_on_every_server() -> None:
    for count in (1, 2, 3, 100, 900):
        addresses = [Address(f"host-{number}", 9092) for number in range(count)]
        ids = node_ids(addresses)
        assert list(ids) == addresses
        assert len(set(ids.values())) == count
        assert all(0 < node_id < 1000 for node_id in ids.values())
        shuffled = random.Random(count).sample(addresses, count)
        assert node_ids(shuffled) == ids
    # An address that is listed twice is one server.
    assert node_ids(hosts("a", "a")) == {Address("a", 9092): 1}


def test_adding_a_server_keeps_node_ids_unless_two_hashes_are_equal() -> None:
    before = node_ids(hosts("a", "b"))
    assert before.items() <= node_ids(hosts("a", "b", "c")).items()
    # "host-0" and the other address have the same hash, but different ids.
    hashes = {zlib.crc32(f"host-{number}:9092".encode()) % 998: f"host-{number}" for number in range(1, 10_000)}
    same = hashes[zlib.crc32(b"host-0:9092") % 998]
    ids = node_ids(hosts("host-0", same))
    assert sorted(ids.values()) == [min(ids.values()), min(ids.values()) + 1]


def test_every_response_has_the_same_node_id(tmp_path: Path, serve: Callable[..., Address]) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    advertised = tuple(hosts("b", "a"))
    ids = node_ids(advertised)
    wire = Wire(serve(tmp_path, advertise=advertised))
    # The other server does not respond.
    own = {ids[advertised[0]]: "b"}
    cluster = wire.ask("DescribeCluster", 0, {})
    assert {row["brokerId"]: row["host"] for row in cluster["brokers"]} == own
    topics = wire.ask("Metadata", 9, {"topics": None})
    assert {row["nodeId"]: row["host"] for row in topics["brokers"]} == own
    assert topics["topics"][0]["partitions"][0]["leaderId"] in own
    assert wire.ask("FindCoordinator", 0, {"key": "g"})["nodeId"] in own
    wire.close()
    alone = Wire(serve(tmp_path))
    assert alone.ask("DescribeCluster", 0, {})["controllerId"] == 1
    alone.close()


def test_a_server_is_a_broker_but_not_a_controller(tmp_path: Path, serve: Callable[..., Address]) -> None:
    sparklog.open(tmp_path, create=True)
    wire = Wire(serve(tmp_path))
    for kind, code in ((1, Code.NONE), (2, Code.MISMATCHED_ENDPOINT_TYPE), (3, Code.UNSUPPORTED_ENDPOINT_TYPE)):
        answer = wire.ask("DescribeCluster", 2, {"endpointType": kind})
        assert (answer["errorCode"], len(answer["brokers"])) == (code, int(code == Code.NONE))
    wire.close()


# The log start is 2 and the log end is 5. The largest timestamp is that of offset 3.
SPECIAL_OFFSETS = {-1: 5, -2: 2, -3: 3, -4: 2, -5: -1, 200: 3}
FIRST_VERSIONS = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -9: 99, 200: 1}


def test_offsets_of_special_timestamps(tmp_path: Path, serve: Callable[..., Address]) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append({"value": list("abcde"), "timestamp": [1, 2, 150, 300, 250]})
    topic.delete_records({0: 2})
    wire = Wire(serve(tmp_path))
    for version, (time_ms, first) in product(range(1, 10), FIRST_VERSIONS.items()):
        asked = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "timestamp": time_ms}]}]}
        row = wire.ask("ListOffsets", version, asked)["topics"][0]["partitions"][0]
        expected = (0, SPECIAL_OFFSETS[time_ms]) if version >= first else (Code.UNSUPPORTED_VERSION, -1)
        assert (row["errorCode"], row["offset"]) == expected, (version, time_ms)
    wire.close()
