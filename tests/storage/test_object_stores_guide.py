"""docs/guides/object-stores.md is correct: its settings exist, and its permissions are sufficient."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import Unavailable
from sparklog.log.topic.root import open_root
from sparklog.storage.cloud_settings import AZURE, GCS, S3, SETTINGS, check_settings, is_setting
from sparklog.storage.locations import normal_location
from sparklog.storage.object_store import ObjectStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.verification.run import verify_root
from tests.support.moto_server import MotoServer

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "object-stores.md").read_text()
CLOUDS = {"S3": S3, "Google": GCS, "Azure": AZURE}
ROWS = pa.table({"key": [b"k"], "value": [b"v"]})
NOTHING = "(?!)"


class Limited(ObjectStore):
    """A bucket whose policy allows this process to create and delete only objects that match these patterns."""

    def __init__(self, url: str, creates: str, deletes: str) -> None:
        super().__init__(url)
        self._creates, self._deletes = re.compile(creates), re.compile(deletes)

    def create(self, key: str, data: bytes) -> bool:
        self._check(self._creates, key, "create")
        return super().create(key, data)

    def put_whole(self, key: str, data: bytes) -> None:
        self._check(self._creates, key, "create")
        super().put_whole(key, data)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = list(keys)
        for key in names:
            self._check(self._deletes, key, "delete")
        super().delete_many(names)

    @staticmethod
    def _check(allowed: re.Pattern[str], key: str, action: str) -> None:
        if allowed.match(key) is None:
            raise Unavailable(f"cannot {action} {key}: access is denied")


@pytest.fixture
def location(bucket: str) -> str:
    root = sparklog.open(bucket, create=True)
    root.ensure_topic("orders").append(ROWS)
    with sparklog.transactional(root, "job").begin() as transaction:
        transaction.append("orders", ROWS)
    return bucket


def read(store: ObjectStore) -> None:
    topic = open_root(store).topic("orders")
    assert topic.scan().to_table().num_rows >= 2
    assert verify_root(store).sound


def write(store: ObjectStore) -> None:
    root = open_root(store)
    root.ensure_topic("others", partitions=2)
    root.topic("orders").append(ROWS)
    with sparklog.transactional(root, "other-job").begin() as transaction:
        transaction.append("orders", ROWS)
        transaction.append("others", ROWS)
    with sparklog.consumer(root, "group", topics="orders", auto_offset_reset="earliest") as consumer:
        assert consumer.poll()
        consumer.commit()


def policy(action: str) -> str:
    """Return the pattern of keys for which the guide's policy for writers allows an action."""
    statements = json.loads(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)[0])["Statement"]
    (resource,) = [each["Resource"] for each in statements if action in each["Action"]]
    return translate(resource.removeprefix("arn:aws:s3:::bucket/log/"))


def test_a_reader_needs_no_permission_to_create_or_delete(location: str) -> None:
    read(Limited(location, NOTHING, NOTHING))


def test_the_writer_policy_is_sufficient(location: str) -> None:
    write(Limited(location, policy("s3:PutObject"), policy("s3:DeleteObject")))


def test_the_backup_permissions_are_sufficient(location: str, moto_server: MotoServer) -> None:
    source = Limited(location, r".*/_log/|_probe/", "_probe/")
    assert back_up(open_root(source), ObjectStore(moto_server.new_bucket())).number == 1


def test_missing_permissions_are_reported(location: str) -> None:
    with pytest.raises(Unavailable, match=r"cannot create _probe/.*: access is denied"):
        open_root(Limited(location, "(?!_probe/)", "")).topic("orders").append(ROWS)


def test_settings_in_the_guide_match_the_code() -> None:
    rows = re.findall(r"^\| ((?:`[a-z_0-9]+`(?:, )?)+) \| ([A-Z]\w+(?:, \w+)*) \|", GUIDE, re.MULTILINE)
    described = {
        (name, *(CLOUDS[cloud] for cloud in clouds.split(", ")))
        for names, clouds in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert described == {(setting.name, *setting.used_by) for setting in SETTINGS}


def test_hadoop_options_in_the_guide_are_accepted() -> None:
    names = set(re.findall(r"`(fs\.s3a\.[a-z.]+)`", GUIDE))
    assert names
    for name in names:
        assert is_setting(name)
        assert check_settings(S3, {name: "true"}, "a test")


def test_urls_of_the_guide_are_locations() -> None:
    urls = set(re.findall(r"`((?:s3a?|gs|az|abfss|hdfs)://[^`]+)`", GUIDE))
    assert len(urls) >= 10
    for url in urls:
        assert normal_location(url.replace("<account>", "account"))


def test_rules_of_the_guide_are_json() -> None:
    rules = json.loads(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)[1])
    assert rules["Rules"][0]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 2}
