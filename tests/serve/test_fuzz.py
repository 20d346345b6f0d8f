"""Requests that no client sends: each gets a response or loses its connection, and other clients notice nothing.

The requests belong to sequences of valid requests, in which some are changed, repeated or left out. `SPARKLOG_SEEDS`
is the number of sequences of the slow test. A sequence has about 12 requests.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sparklog
from sparklog.errors import BadRequest, Corrupt
from sparklog.kafka.messages.message_codec import read_message
from sparklog.serve.apis.table import API_VERSIONS, APIS, Api
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.storage import open_store
from sparklog.testing.kafka_server import KafkaServer
from sparklog.tools.verification.run import verify_root
from tests.serve.mutated_requests import changed_bytes, changed_fields, encoded, framed, known_fields, with_unknown_tags
from tests.serve.request_sequences import SEQUENCES, Sequence, produce_request, value_of
from tests.serve.server_process import server_process
from tests.serve.test_codec import as_buffers, some_fields
from tests.serve.wire import BY_NAME, Fields, Wire, batch_of
from tests.support.seeds import Seeds

SEEDS = Seeds(every_run=60, slow_run=2_000, chunk=60, slow_chunk=500)
TIMEOUT_SECONDS = 30
"""A response that does not arrive within this time will never arrive."""
CHECKS = 10
"""The number of sequences after which the bystander's state is checked."""
MAX_MEMORY_BYTES = 600 << 20
SESSIONS = "--group-min-session-timeout-ms", "100"


def errors_in(fields: Any) -> list[int]:
    """Return all error codes of a response."""
    if isinstance(fields, list):
        return [number for item in fields for number in errors_in(item)]
    if not isinstance(fields, dict):
        return []
    codes = [value for name, value in fields.items() if name.lower().endswith("errorcode") and value is not None]
    return codes + [number for item in fields.values() for number in errors_in(item)]


class Fuzzer:
    """Sends sequences of requests. `responses` counts the codes of the responses of each API, and closed connections.

    `unknown_errors` are the requests that got UNKNOWN_SERVER_ERROR.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.responses = Counter[tuple[str, str]]()
        self.unknown_errors: list[tuple[str, int, Fields]] = []
        self.seed = 0
        self._rate = 0.0
        self._wire: Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def run(self, seed: int) -> None:
        """Send the requests of a sequence. Some of them are left out or sent twice."""
        self.seed, source = seed, Random(seed)
        sequence = source.choice((*SEQUENCES, any_requests))(source)
        self._rate = source.choice((0.05, 0.2, 0.6))
        found: Fields | None = None
        for number in count():
            try:
                name, fields = next(sequence) if found is None else sequence.send(found)
            except StopIteration:
                return
            # The changes of a request do not depend on the responses to the requests before it.
            found, random_ = {}, Random(f"{seed} {number}")
            if name in BY_NAME:
                for _ in range(random_.choice((0, 2, *[1] * 18))):
                    found = self.send(BY_NAME[name], fields, random_)

    def send(self, api: Api, fields: Fields, random_: Random) -> Fields:
        """Send a request that may have been changed, and return the fields of the response."""
        version, kind = random_.randint(api.min_version, api.max_version), random_.random()
        is_changed = random_.random() < self._rate
        fields = known_fields(api.request, fields)
        if is_changed and kind < 0.6:
            fields = changed_fields(api, version, fields, random_)
        try:
            message = encoded(api, version, fields)
        except BadRequest:
            # This version does not have this null.
            return {}
        if is_changed and kind > 0.9 and api.request.is_flexible(version):
            message = with_unknown_tags(message, random_)
        frame = framed(api, version, message, 1)
        if is_changed and 0.6 <= kind < 0.9:
            return self._exchange_bytes(api, version, self._changed_frame(api, version, message, random_))
        if api.name == "Produce" and fields["acks"] == 0:
            return self._exchange_bytes(api, version, frame)
        return self._exchange(api, version, frame, fields)

    @staticmethod
    def _changed_frame(api: Api, version: int, message: bytes, random_: Random) -> bytes:
        kind = random_.randrange(10)
        if kind < 7:
            return framed(api, version, changed_bytes(message, random_), 1)
        frame = framed(api, version, message, 1)
        if kind < 9:
            body = changed_bytes(frame[4:], random_)
            return struct.pack(">i", len(body)) + body
        return changed_bytes(frame[:4], random_) + frame[4:]

    def _exchange(self, api: Api, version: int, frame: bytes, fields: Fields) -> Fields:
        wire = self._wire = self._wire or Wire(self.address)
        wire.socket.settimeout(TIMEOUT_SECONDS)
        try:
            wire.socket.sendall(frame)
            found = wire.receive(api.name, version)
        except TimeoutError:
            pytest.fail(f"seed {self.seed}: no response to {api.name} {version}: {fields}")
        except (AssertionError, ConnectionError):
            self.close()
            self.responses[api.name, "closed"] += 1
            return {}
        self._count(api, version, found, fields)
        return found

    def _exchange_bytes(self, api: Api, version: int, frame: bytes) -> Fields:
        """Send bytes on a connection of their own, and read until the server closes it."""
        data = b""
        with socket.create_connection((self.address.host, self.address.port), timeout=TIMEOUT_SECONDS) as connection:
            try:
                connection.sendall(frame)
                connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(1 << 16):
                    data += chunk
            except TimeoutError:
                pytest.fail(f"seed {self.seed}: the connection of {api.name} {version} stays open: {frame.hex()}")
            except OSError:
                pass
        if not data:
            self.responses[api.name, "closed"] += 1
            return {}
        flexible = api.key != API_VERSIONS and api.response.is_flexible(version)
        try:
            found, _ = read_message(api.response, version, data, 9 if flexible else 8)
        except Corrupt:
            # The changed bytes are a request of another API or version.
            return {}
        self._count(api, version, found, {"": frame})
        return found

    def _count(self, api: Api, version: int, found: Fields, fields: Fields) -> None:
        codes = set(errors_in(found)) or {0}
        for code in codes:
            self.responses[api.name, Code(code).name if code in set(Code) else str(code)] += 1
        if Code.UNKNOWN_SERVER_ERROR in codes and "" not in fields:
            self.unknown_errors.append((api.name, version, fields))


def any_requests(random_: Random) -> Sequence:
    """A request of each API with random fields."""
    for api in random_.sample(list(APIS.values()), 12):
        fields = calmed(some_fields(api.request, api.max_version, random_), random_)
        yield api.name, as_buffers(api.request.name, fields)


WAITS = {"maxWaitMs": 1, "sessionTimeoutMs": 150, "rebalanceTimeoutMs": 50, "timeoutMs": 1}
NAMES = ("t", "u", "", "a/b", "__consumer_offsets", "x" * 300)


def calmed(value: Any, random_: Random) -> Any:
    """Return a request's fields with short waits and, sometimes, with existing names and numbers."""
    if isinstance(value, list):
        return [calmed(item, random_) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {name: WAITS.get(name, calmed(item, random_)) for name, item in value.items()}
    for name, item in fields.items():
        if random_.random() < 0.6:
            if isinstance(item, str) and len(item) != 22:
                fields[name] = random_.choice(NAMES)
            elif isinstance(item, int) and not isinstance(item, bool) and name not in WAITS:
                fields[name] = random_.choice((-2, -1, 0, 1, 2))
            elif name == "records" and item is not None:
                fields[name] = changed_bytes(batch_of([b"a"]), random_)
    # Creating millions of partitions succeeds, but takes long.
    return fields | {name: fields[name] % 8 for name in ("numPartitions", "count") if name in fields}


class Bystander:
    """A client with valid requests: an idempotent producer, a transaction, and a member of a group.

    Its topic, group and transactional id are its own.
    """

    TOPIC, GROUP, ID = "bystander", "bystanders", "bystander"

    def __init__(self, address: Address) -> None:
        self.wire = Wire(address)
        self.wire.ask("FindCoordinator", 1, {"key": self.GROUP, "keyType": 0})
        self.idempotent = self._producer(None)
        self.transactional = self._producer(self.ID)
        self.rounds = 0
        self.records = 0
        join = {"groupId": self.GROUP, "protocolType": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
        join |= {"sessionTimeoutMs": 600_000, "rebalanceTimeoutMs": 600_000, "memberId": ""}
        joined = self.wire.ask("JoinGroup", 3, join)
        self.member = {
            "groupId": self.GROUP,
            "memberId": joined["memberId"],
            "generationId": joined["generationId"],
        }
        synced = self.wire.ask("SyncGroup", 2, {**self.member, "assignments": [self._assignment(b"mine")]})
        assert (synced["errorCode"], synced["assignment"]) == (0, b"mine")

    def _assignment(self, data: bytes) -> Fields:
        return {"memberId": self.member["memberId"], "assignment": data}

    def _producer(self, id_: str | None) -> tuple[int, int]:
        fields = {"transactionalId": id_, "transactionTimeoutMs": 900_000, "producerId": -1, "producerEpoch": -1}
        found = self.wire.ask("InitProducerId", 4, fields)
        return found["producerId"], found["producerEpoch"]

    def restore_topics(self) -> None:
        """Create the topics of the sequences again, if a changed request has deleted them."""
        configs: dict[str, list[Fields]] = {"t": [], "u": [{"name": "cleanup.policy", "value": "compact"}]}
        shared: Fields = {"numPartitions": 1, "replicationFactor": 1, "assignments": []}
        topics = [{"name": name, "configs": rows, **shared} for name, rows in configs.items()]
        self.wire.ask("CreateTopics", 4, {"topics": topics, "timeoutMs": 1_000})

    def check(self) -> None:
        """Take the next step of each part, and check that each has the expected response."""
        for producer, id_ in ((self.idempotent, None), (self.transactional, self.ID)):
            batch = batch_of([b"%d" % self.records], producer=(*producer, self.rounds), transactional=id_ is not None)
            answer = self.wire.ask("Produce", 11, produce_request(self.TOPIC, batch, id_)[1])
            row = answer["responses"][0]["partitionResponses"][0]
            assert (row["errorCode"], row["baseOffset"]) == (0, self.records), row
            self.records += 1
        assert self.wire.ask("Heartbeat", 3, self.member) == {"throttleTimeMs": 0, "errorCode": 0}
        position = {"partitionIndex": 0, "committedOffset": self.rounds, "committedMetadata": ""}
        topics = [{"name": self.TOPIC, "partitions": [position]}]
        commit = {"groupId": self.GROUP, "memberId": self.member["memberId"], "topics": topics}
        commit["generationIdOrMemberEpoch"] = self.member["generationId"]
        assert value_of(self.wire.ask("OffsetCommit", 7, commit), "partitions")[0]["errorCode"] == 0
        rows = [{"name": self.TOPIC, "partitionIndexes": [0]}]
        fetched = self.wire.ask("OffsetFetch", 5, {"groupId": self.GROUP, "topics": rows})
        assert value_of(fetched, "partitions")[0]["committedOffset"] == self.rounds
        self.rounds += 1

    def finish(self, root: sparklog.Root) -> None:
        """Commit the transaction, which has been open since the start, and check all records."""
        before = root.topic(self.TOPIC).scan(columns=["value"], isolation_level="read_committed").to_table()
        assert before["value"].to_pylist() == [b"0"]
        id_, epoch = self.transactional
        fields = {"transactionalId": self.ID, "producerId": id_, "producerEpoch": epoch, "committed": True}
        assert self.wire.ask("EndTxn", 4, fields)["errorCode"] == 0
        table = root.topic(self.TOPIC).scan(columns=["value"], isolation_level="read_committed").to_table()
        assert table["value"].to_pylist() == [b"%d" % number for number in range(self.records)]
        self.wire.close()


def run(folder: Path, seeds: range) -> Counter[tuple[str, str]]:
    """Send the sequences of these seeds to a new server, and check the server and the log."""
    root = sparklog.open(folder / "root", create=True)
    root.create_topic(Bystander.TOPIC)
    with server_process(root.location, folder / "serve.log", *SESSIONS) as server:
        bystander, fuzzer = Bystander(server.address), Fuzzer(server.address)
        for seed in seeds:
            bystander.restore_topics()
            fuzzer.run(seed)
            if seed % CHECKS == 0:
                bystander.check()
                assert not server.internal_errors(), (seed, server.internal_errors()[0])
                assert not fuzzer.unknown_errors, (seed, fuzzer.unknown_errors[0])
        fuzzer.close()
        bystander.check()
        bystander.finish(root)
        assert server.memory("VmHWM") < MAX_MEMORY_BYTES
        assert not server.internal_errors(), server.internal_errors()[0]
        assert not fuzzer.unknown_errors, fuzzer.unknown_errors[0]
    assert not verify_root(open_store(root.location)).findings
    return fuzzer.responses


@pytest.mark.parametrize("seeds", SEEDS.few())
def test_hundreds_of_changed_requests(tmp_path: Path, seeds: range) -> None:
    responses = run(tmp_path, seeds)
    assert responses.total() > 300


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("seeds", SEEDS.many())
def test_thousands_of_changed_requests(tmp_path: Path, seeds: range) -> None:
    responses = run(tmp_path, seeds)
    assert responses.total() > 8 * len(seeds)
    assert len({name for name, code in responses if code == "NONE"}) > 0.8 * len(APIS)


def test_an_unsupported_version_of_api_versions_returns_the_list(kafka_server: KafkaServer) -> None:
    wire = Wire(Address.of(kafka_server.bootstrap))
    body = struct.pack(">hhih", API_VERSIONS, APIS[API_VERSIONS].max_version + 1, 1, -1) + b"\0\5test\4\0"
    wire.socket.sendall(struct.pack(">i", len(body)) + body)
    answer = wire.receive("ApiVersions", 0)
    assert answer["errorCode"] == 35
    assert len(answer["apiKeys"]) == len(APIS)
    wire.close()
