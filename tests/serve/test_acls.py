"""DescribeAcls and DescribeUserScramCredentials show the users file. Clients cannot change it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.serve.users import hashed, read_users
from tests.serve.wire import Wire

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT = range(3, 13)
READING = {READ, DESCRIBE, DESCRIBE_CONFIGS}
WRITING = {WRITE, CREATE, DELETE, ALTER, DESCRIBE, ALTER_CONFIGS}
ALL = {"resourceTypeFilter": ANY, "patternTypeFilter": ANY, "operation": ANY, "permissionType": ANY}
NAMES = ["resourceNameFilter", "principalFilter", "hostFilter"]
USERS = {
    "admin": "read: write:",
    "anna": "read:orders write:orders write:orders group:shop transaction:shop-",
    "carl": "read:",
}
ANNA = {
    (TOPIC, "orders", PREFIXED): READING | WRITING,
    (GROUP, "shop", PREFIXED): READING | {DELETE, ALTER_CONFIGS},
    (TRANSACTIONAL_ID, "shop-", PREFIXED): {WRITE, DESCRIBE},
}
ADMIN = {
    (TOPIC, "*", LITERAL): READING | WRITING,
    (CLUSTER, "kafka-cluster", LITERAL): {CREATE, ALTER, ALTER_CONFIGS, CLUSTER_ACTION, IDEMPOTENT},
}
CARL = {(TOPIC, "*", LITERAL): READING}
Acls = dict[str, dict[tuple[int, str, int], set[int]]]


@pytest.fixture
def connect(tmp_path: Path, serve: Callable[..., Address]) -> Callable[..., Wire]:
    file = tmp_path / "users"
    rows = (f"{name} {hashed(name, random.Random(1))} {allowed}\n" for name, allowed in USERS.items())
    file.write_text("".join(rows))
    sparklog.open(tmp_path / "root", create=True)

    def connected(user: str | None, *, writable: bool = True) -> Wire:
        users = None if user is None else read_users(str(file))
        wire = Wire(serve(tmp_path / "root", writable=writable, users=users))
        if user is not None:
            wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
            assert wire.ask("SaslAuthenticate", 1, {"authBytes": f"\0{user}\0{user}".encode()})["errorCode"] == 0
        return wire

    return connected


def acls(wire: Wire, **filters: Any) -> Acls:
    """Return the operations of each user by resource. All ACLs allow an operation from any host."""
    answer = wire.ask("DescribeAcls", 3, {**dict.fromkeys(NAMES), **ALL, **filters})
    assert answer["errorCode"] == Code.NONE
    found: Acls = {}
    for row in answer["resources"]:
        for acl in row["acls"]:
            assert (acl["host"], acl["permissionType"]) == ("*", 3)
            resources = found.setdefault(acl["principal"].removeprefix("User:"), {})
            operations = resources.setdefault((row["resourceType"], row["resourceName"], row["patternType"]), set())
            assert acl["operation"] not in operations
            operations.add(acl["operation"])
    return found


def test_permissions_are_shown_as_acls(connect: Callable[..., Wire]) -> None:
    assert acls(connect("admin")) == {"admin": ADMIN, "anna": ANNA, "carl": CARL}


def test_a_user_sees_only_its_own_permissions(connect: Callable[..., Wire]) -> None:
    assert acls(connect("anna")) == {"anna": ANNA}
    assert acls(connect("carl")) == {"carl": CARL}


def test_a_read_only_server_does_not_allow_writes(connect: Callable[..., Wire]) -> None:
    found = acls(connect("admin", writable=False))
    assert found["admin"] == CARL
    assert found["anna"][TOPIC, "orders", PREFIXED] == READING


def _names(found: Acls) -> set[str]:
    return {name for resources in found.values() for _, name, _ in resources}


def test_filters_select_acls_as_in_kafka(connect: Callable[..., Wire]) -> None:
    wire = connect("admin")
    assert acls(wire, principalFilter="User:carl") == {"carl": CARL}
    assert acls(wire, principalFilter="carl") == {}
    assert acls(wire, hostFilter="10.0.0.1") == {}
    assert acls(wire, permissionType=2) == {}
    assert acls(wire, resourceTypeFilter=GROUP) == {"anna": {(GROUP, "shop", PREFIXED): ANNA[GROUP, "shop", PREFIXED]}}
    deletes = acls(wire, operation=DELETE, resourceTypeFilter=TOPIC)
    assert deletes == {"admin": {(TOPIC, "*", LITERAL): {DELETE}}, "anna": {(TOPIC, "orders", PREFIXED): {DELETE}}}
    names: dict[tuple[str, int], set[str]] = {
        ("orders-1", ANY): set(),
        ("orders-1", LITERAL): set(),
        ("orders-1", PREFIXED): set(),
        ("orders-1", MATCH): {"orders", "*"},
        ("order", MATCH): {"*"},
        ("orders", MATCH): {"orders", "*"},
        ("orders", PREFIXED): {"orders"},
        ("orders", LITERAL): set(),
        ("orders", ANY): {"orders"},
        ("*", LITERAL): {"*"},
        ("*", PREFIXED): set(),
    }
    for (name, pattern), expected in names.items():
        found = acls(wire, resourceTypeFilter=TOPIC, resourceNameFilter=name, patternTypeFilter=pattern)
        assert _names(found) == expected, (name, pattern)


def test_clients_cannot_change_acls(connect: Callable[..., Wire]) -> None:
    acl = {"resourceType": TOPIC, "resourceName": "t", "principal": "User:a", "host": "*", "operation": READ}
    for user, code in ((None, Code.SECURITY_DISABLED), ("admin", Code.UNSUPPORTED_VERSION)):
        wire = connect(user)
        created = wire.ask("CreateAcls", 3, {"creations": [{**acl, "permissionType": 3}]})["results"]
        deleted = wire.ask("DeleteAcls", 3, {"filters": [{**dict.fromkeys(NAMES), **ALL}]})["filterResults"]
        assert [row["errorCode"] for row in (*created, *deleted)] == [code, code]
        assert ("--users" in created[0]["errorMessage"]) == (user is not None)


def test_scram_credentials_have_the_iterations_of_the_users_file(connect: Callable[..., Wire]) -> None:
    def described(user: str | None, *names: str) -> dict[str, Any]:
        asked = {"users": [{"name": name} for name in names] or None}
        rows = connect(user).ask("DescribeUserScramCredentials", 0, asked)["results"]
        return {row["user"]: (row["errorCode"], row["credentialInfos"]) for row in rows}

    credentials = [{"mechanism": 1, "iterations": 4096}]
    missing: Any = (Code.RESOURCE_NOT_FOUND, [])
    twice: Any = (Code.DUPLICATE_RESOURCE, [])
    assert described(None) == {}
    assert described("admin") == dict.fromkeys(USERS, (0, credentials))
    assert described("admin", "carl", "eve") == {"carl": (0, credentials), "eve": missing}
    assert described("admin", "carl", "carl") == {"carl": twice}
    assert described("carl") == {"carl": (0, credentials)}
    assert described("carl", "anna") == {"anna": missing}


def test_credentials_cannot_be_changed(connect: Callable[..., Wire]) -> None:
    for user, name in product((None, "admin"), ("anna", "eve")):
        asked = {"deletions": [{"name": name, "mechanism": 1}], "upsertions": []}
        (row,) = connect(user).ask("AlterUserScramCredentials", 0, asked)["results"]
        assert row["errorCode"] == Code.UNSUPPORTED_VERSION
        assert "--users" in row["errorMessage"]
