"""Users: correct and wrong passwords of clients, and the permissions of each user."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import BadRequest
from sparklog.serve.apis.table import APIS, BEFORE_LOGIN
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.options import Address
from sparklog.serve.users import SCRAM, SaslExchange, User, Verifier, hashed, read_users
from tests.serve.clients import read_with_kafka_python
from tests.serve.wire import Wire, batch_of

# RFC 7677, section 3: user "user", password "pencil".
RFC_SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
RFC_FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
PASSWORDS = {"anna": "pencil", "carl": "größe,=x"}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    lines = {
        "anna": "read:orders write:orders group:shop",
        "carl": "read: group:",
    }
    text = "# who may what\n\n" + "\n".join(
        f"{name} {hashed(PASSWORDS[name], random.Random(1))} {allowed}" for name, allowed in lines.items()
    )
    file = tmp_path / "users"
    file.write_text(text)
    return file


@pytest.fixture
def address(users: Path, tmp_path: Path, serve: Callable[..., Address]) -> Address:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in ("orders", "payments"):
        root.create_topic(name).append({"value": [name]})
    return serve(root.location, writable=True, users=read_users(str(users)))


def options(name: str, mechanism: str, password: str | None = None) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password or PASSWORDS[name],
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
def test_a_correct_password_is_accepted_and_a_wrong_one_is_rejected(address: Address, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    for name in PASSWORDS:
        records = read_with_kafka_python(address, "orders", 0, **options(name, mechanism))
        assert [record.value for record in records] == [b"orders"]

    async def connect(password: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=str(address), **options("anna", mechanism, password))
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(connect("pencil"))
    for wrong in ("Pencil", "x"):
        with pytest.raises(KafkaError):
            asyncio.run(connect(wrong))


def test_the_example_of_the_rfc() -> None:
    import base64

    verifier = Verifier.of("pencil", base64.b64decode(RFC_SALT))

    exchange = SaslExchange(SCRAM, {"user": User("user", verifier, {})}, random.Random(1))
    answer = exchange.step(RFC_FIRST.encode()).decode()
    assert answer.startswith("r=rOprNGfwEbeRWgbNEkqO")
    assert answer.endswith(f",s={RFC_SALT},i=4096")
    # The RFC's proof is for the RFC's nonce. The keys are correct if they yield the proof.
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    exchange._nonce = nonce
    exchange._messages[1] = f"r={nonce},s={RFC_SALT},i=4096"
    final = exchange.step(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.user is not None


def answered(exchange: SaslExchange, *messages: bytes) -> None:
    for message in messages:
        exchange.step(message)


@pytest.mark.parametrize(
    "message",
    ["", "x", "p=tls,,n=user,r=a", "n,,r=a", "n,,n=user", "n,,m=x,n=user,r=a", "n,,n=nobody,r=a", "\0\0", "a\0b"],
)
def test_malformed_messages_are_rejected(message: str) -> None:
    for mechanism in ("PLAIN", SCRAM):
        exchange = SaslExchange(mechanism, {"user": User("user", Verifier.of("pencil", b"salt"), {})}, random.Random(1))
        with pytest.raises(CodeError):
            answered(exchange, message.encode(), b"c=biws,r=x,p=AAAA")
        assert exchange.user is None


def test_a_salt_does_not_disclose_whether_a_name_exists() -> None:
    """The salt is the same each time, like that of an existing user, and only the users file determines it."""

    def salt(password: str) -> str:
        users = {"user": User("user", Verifier.of(password, b"salt"), {})}
        exchange = SaslExchange(SCRAM, users, random.Random(1))
        return exchange.step(b"n,,n=nobody,r=a").decode().split(",")[1]

    assert salt("pencil") == salt("pencil") != salt("another")


def test_requests_before_authentication_get_no_response(address: Address) -> None:
    wire = Wire(address)
    assert wire.ask("ApiVersions", 3, {})["errorCode"] == 0
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"x"})["errorCode"] == Code.ILLEGAL_SASL_STATE
    assert wire.ask("SaslHandshake", 1, {"mechanism": "GSSAPI"})["errorCode"] == Code.UNSUPPORTED_SASL_MECHANISM
    assert wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})["errorCode"] == 0
    wrong = wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0wrong"})
    assert wrong["errorCode"] == Code.SASL_AUTHENTICATION_FAILED
    wire.send("Metadata", 1, {"topics": None})
    with pytest.raises((AssertionError, ConnectionError)):
        wire.receive("Metadata", 1)
    wire.close()


def test_every_request_requires_authentication(address: Address) -> None:
    for api in APIS.values():
        wire = Wire(address)
        wire.send(api.name, api.max_version, {})
        assert (wire.socket.recv(1) == b"") == (api.key not in BEFORE_LOGIN), api.name
        wire.close()


def test_each_user_can_do_only_what_is_allowed(address: Address) -> None:
    wire = Wire(address)
    wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0pencil"})["errorCode"] == 0
    assert [topic["name"] for topic in wire.ask("Metadata", 1, {"topics": None})["topics"]] == ["orders"]
    named = wire.ask("Metadata", 1, {"topics": [{"name": "payments"}]})["topics"]
    assert named[0]["errorCode"] == Code.TOPIC_AUTHORIZATION_FAILED
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    place = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}
    for topic, code in (("orders", 0), ("payments", denied), ("none", denied)):
        asked = {"maxBytes": 1000, "topics": [{"topic": topic, "partitions": [place]}]}
        answer = wire.ask("Fetch", 4, asked)["responses"][0]["partitions"][0]
        assert answer["errorCode"] == code
        assert bool(answer["records"]) == (code == 0)
        times = {"topics": [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]}
        assert wire.ask("ListOffsets", 1, times)["topics"][0]["partitions"][0]["errorCode"] == code
        assert wire.produce(topic, {0: batch_of([b"x"])})[0]["errorCode"] == code
        resources = {"resources": [{"resourceType": 2, "resourceName": topic, "configurationKeys": None}]}
        assert wire.ask("DescribeConfigs", 1, resources)["results"][0]["errorCode"] == code
    assert wire.ask("DeleteTopics", 4, {"topicNames": ["payments"]})["responses"][0]["errorCode"] == denied
    assert wire.ask("CreateTopics", 5, {"topics": [{"name": "new"}]})["topics"][0]["errorCode"] == denied
    assert wire.ask("FindCoordinator", 2, {"key": "shop-1"})["errorCode"] == 0
    assert wire.ask("FindCoordinator", 2, {"key": "audit"})["errorCode"] == Code.GROUP_AUTHORIZATION_FAILED
    described = wire.ask("DescribeGroups", 0, {"groups": ["audit"]})["groups"][0]
    assert described["errorCode"] == Code.GROUP_AUTHORIZATION_FAILED
    wire.close()


def test_offsets_of_denied_topics_are_not_returned(address: Address, tmp_path: Path) -> None:
    group = sparklog.Groups(tmp_path / "root").group("shop")
    group.alter({"orders": {0: 1}, "payments": {0: 1}})
    wire, denied = Wire(address), Code.TOPIC_AUTHORIZATION_FAILED
    wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0pencil"})["errorCode"] == 0
    asked = [{"name": name, "partitionIndexes": [0]} for name in ("orders", "payments")]
    for topics, expected in ((None, {"orders": (1, 0)}), (asked, {"orders": (1, 0), "payments": (-1, denied)})):
        rows = wire.ask("OffsetFetch", 7, {"groupId": "shop", "topics": topics})["topics"]
        shown = {row["name"]: row["partitions"][0] for row in rows}
        assert {name: (row["committedOffset"], row["errorCode"]) for name, row in shown.items()} == expected
    gone = [{"name": name, "partitions": [{"partitionIndex": 0}]} for name in ("orders", "payments")]
    rows = wire.ask("OffsetDelete", 0, {"groupId": "shop", "topics": gone})["topics"]
    assert [row["partitions"][0]["errorCode"] for row in rows] == [Code.NONE, denied]
    assert list(group.committed()) == [("payments", 0)]
    wire.close()


GOOD = f"anna {hashed('x', random.Random(1))}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("anna", r"expected `NAME SCRAM-SHA-256\$\.\.\. \[OPERATION:PREFIX \.\.\.\]`, found only a name"),
        ("anna secret read:", "the second field is a hash with 4096 to 1000000 iterations"),
        ("anna SCRAM-SHA-256$1:c2FsdA==$AAAA:AAAA read:", "the second field is a hash"),
        ("anna SCRAM-SHA-256$4096:c2FsdA==$AAAA:AAAA read:", "the second field is a hash"),
        (f"{GOOD} execute:orders", "one of read, write, group, transaction, found 'execute:orders'"),
        (f"{GOOD} read", "expected OPERATION:PREFIX with one of .*, found 'read'"),
        (f"{GOOD}\n{GOOD}", "user anna is already defined in another line"),
    ],
)
def test_an_error_reports_the_invalid_line(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "users"
    file.write_text(f"# users\n{line}\n")
    with pytest.raises(BadRequest, match=rf"line [23] of .*: .*{problem}") as caught:
        read_users(str(file))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# anna\n\n"])
def test_a_users_file_without_users_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(BadRequest, match=r"has no users, so no client could log in: add a line `NAME .*omit --users"):
        read_users(str(tmp_path / "users"))


def test_a_users_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot read the users file .*: No such file"):
        read_users(str(tmp_path / "none"))
    (tmp_path / "users").write_bytes(b"anna \xff")
    with pytest.raises(BadRequest, match="it is not UTF-8 text"):
        read_users(str(tmp_path / "users"))


def test_a_users_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(GOOD, "utf-8-sig")
    assert list(read_users(str(tmp_path / "users"))) == ["anna"]


def test_members_of_the_consumer_protocol_get_only_topics_that_they_may_read(address: Address) -> None:
    wire = Wire(address)
    wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0pencil"})["errorCode"] == 0
    join = {"memberId": "m", "memberEpoch": 0, "rebalanceTimeoutMs": 9_000, "topicPartitions": []}
    fields = {"groupId": "shop", **join, "subscribedTopicNames": ["orders", "payments"]}
    assert wire.ask("ConsumerGroupHeartbeat", 1, fields)["errorCode"] == Code.TOPIC_AUTHORIZATION_FAILED
    fields |= {"subscribedTopicNames": None, "subscribedTopicRegex": "orders|payments"}
    assert len(wire.ask("ConsumerGroupHeartbeat", 1, fields)["assignment"]["topicPartitions"]) == 1
    fields["groupId"] = "other"
    assert wire.ask("ConsumerGroupHeartbeat", 1, fields)["errorCode"] == Code.GROUP_AUTHORIZATION_FAILED
    wire.close()
