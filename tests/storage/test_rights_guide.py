"""docs/guides/rights.md is correct: its policy and its user groups give a team exactly the documented permissions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import SparklogError, Unavailable
from sparklog.log.topic.root import Root, open_root
from sparklog.serve.users import User, Verifier
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.store import ObjectInfo
from tests.test_readme import with_sparklog

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "rights.md").read_text()
ROWS = pa.table({"key": [b"k"], "value": [b"v" * 50_000]})
BUCKET = "arn:aws:s3:::bucket"
ORDERS, WRITERS = 54_321, 54_322
"""The numbers of the two groups in the guide."""
UNPRIVILEGED = "-dac_override,-dac_read_search,-fowner"


def policy() -> list[Mapping[str, Any]]:
    (text,) = re.findall(r"^```json\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    statements: list[Mapping[str, Any]] = json.loads(text)["Statement"]
    return statements


def values(item: str | list[str]) -> list[str]:
    return [item] if isinstance(item, str) else item


def allows(action: str, resource: str, prefix: str | None = None) -> bool:
    """Evaluate a request like S3, by the actions, resources and conditions of the guide's policy."""
    for statement in policy():
        prefixes = statement.get("Condition", {}).get("StringLikeIfExists", {}).get("s3:prefix", "*")
        if (
            action in values(statement["Action"])
            and any(fnmatchcase(resource, pattern) for pattern in values(statement["Resource"]))
            and (prefix is None or any(fnmatchcase(prefix, pattern) for pattern in values(prefixes)))
        ):
            return True
    return False


class Judged(ObjectStore):
    """A bucket that rejects requests that the guide's policy does not allow. The root is its directory `log`."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._check_result("s3:GetObject", key)
        return super().get(key, start, length)

    def stat(self, key: str) -> ObjectInfo | None:
        self._check_result("s3:GetObject", key)
        return super().stat(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._judge_list(prefix)
        return super().list(prefix, after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._judge_list(prefix)
        return super().list_folders(prefix)

    def create(self, key: str, data: bytes) -> bool:
        self._check_result("s3:PutObject", key)
        return super().create(key, data)

    def put_whole(self, key: str, data: bytes) -> None:
        self._check_result("s3:PutObject", key)
        super().put_whole(key, data)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [*keys]
        for key in names:
            self._check_result("s3:DeleteObject", key)
        super().delete_many(names)

    def _check_result(self, action: str, key: str) -> None:
        if not allows(action, f"{BUCKET}/log/{key}"):
            raise Unavailable(f"access is denied: {action} of {key}", is_denied=True)

    def _judge_list(self, prefix: str) -> None:
        if not allows("s3:ListBucket", BUCKET, f"log/{prefix}"):
            raise Unavailable(f"access is denied: a listing of {prefix}", is_denied=True)


def consume(root: Root, group: str) -> None:
    with sparklog.consumer(root, group, topics="orders", auto_offset_reset="earliest") as consumer:
        assert consumer.poll()
        consumer.commit()


def transact(root: Root, transactional_id: str) -> None:
    with sparklog.transactional(root, transactional_id).begin() as transaction:
        transaction.append("orders", ROWS)


def test_the_policy_allows_a_team_to_use_only_its_topic(bucket: str) -> None:
    location = f"{bucket}/log" if "?" not in bucket else bucket.replace("?", "/log?", 1)
    root = sparklog.open(location, create=True)
    for name in ("orders", "orders-archive"):
        root.ensure_topic(name).append(ROWS)
    transact(root, "another")

    team = open_root(Judged(location))
    team.topic("orders").append(ROWS)
    consume(team, "shop")
    transact(team, "orders-job")
    assert team.topic("orders").scan().to_table().num_rows == 4
    denied: list[Callable[[], object]] = [
        lambda: team.topic("orders-archive").append(ROWS),
        lambda: team.topic("orders-archive").scan().to_table(),
        lambda: team.create_topic("orders-new"),
        lambda: consume(team, "shop-2"),
    ]
    for action in denied:
        with pytest.raises(SparklogError, match="access is denied"):
            action()
    assert not allows("s3:PutObject", f"{BUCKET}/log/_transactions/another/_log/00000000000000000003.json")


def test_each_policy_statement_contains_the_principal() -> None:
    assert {json.dumps(statement["Principal"]) for statement in policy()} == {
        '{"AWS": "arn:aws:iam::111122223333:role/orders-team"}'
    }


PROGRAM = """
import os, sys
import sparklog

os.umask(0o002)
root = sparklog.open(sys.argv[1])

def attempt(name, action):
    try:
        action()
    except sparklog.SparklogError as error:
        assert "permission denied" in str(error), error
    else:
        print(name)

def consume():
    with sparklog.consumer(root, "shop", topics="orders", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        consumer.commit()

def transact():
    with sparklog.transactional(root, sys.argv[2]).begin() as transaction:
        transaction.append("orders", {"value": ["lamp"]})

attempt("read", lambda: root.topic("orders").scan().to_table())
attempt("write", lambda: root.topic("orders").append({"value": ["v" * 50_000]}))
attempt("group", consume)
attempt("transaction", transact)
attempt("topic", lambda: root.create_topic(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("setpriv")),
    reason="needs root and setpriv, to give groups of users to processes",
)
def test_user_groups_have_the_permissions_in_the_guide(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    commands = commands.replace("chgrp writers", f"chgrp {WRITERS}").replace("chgrp -R orders", f"chgrp -R {ORDERS}")
    script = commands.replace("/data/", f"{tmp_path}/")
    environment = with_sparklog(tmp_path)
    subprocess.run(["sh", "-e", "-c", script], env=environment, check=True)
    # owned by another user than the processes below
    subprocess.run(["chown", "-R", "54320", tmp_path / "log"], check=True)

    def ran(name: str, *groups: int) -> list[str]:
        limits = [f"--bounding-set={UNPRIVILEGED}", f"--inh-caps={UNPRIVILEGED}"]
        rights = [f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups", "--regid=54399", *limits]
        command = ["setpriv", *rights, sys.executable, "-c", PROGRAM, tmp_path / "log", name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    all_of_it = ["read", "write", "group", "transaction", "topic"]
    assert ran("first", ORDERS, WRITERS) == all_of_it
    assert ran("second", ORDERS, WRITERS) == all_of_it
    assert ran("third", ORDERS) == ["read"]
    assert ran("fourth", WRITERS) == ["topic"]
    assert ran("fifth") == []


def test_prefixes_in_the_users_file_have_no_end() -> None:
    anna = User("anna", Verifier.of("", b""), {"read": ("orders",), "group": ("shop",)})
    assert anna.may("read", "orders")
    assert anna.may("read", "orders-archive")
    assert not anna.may("write", "orders")
    assert not anna.may("read", "payments")
