"""A bucket as a store: the store tests with an S3 server, and the behavior that is specific to buckets."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from multiprocessing import get_context

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage import Store, open_store
from sparklog.storage.object_store import PART_BYTES, ObjectStore, _start_after
from sparklog.testing.store_tests import StoreTests


class TestBucket(StoreTests):
    clock_step_ms = 1000

    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(bucket)


class TestFolderInBucket(StoreTests):
    clock_step_ms = 1000

    @pytest.fixture
    def store(self, bucket: str) -> Iterator[Store]:
        beside = open_store(bucket)
        # Objects next to the directory must never be visible.
        beside.create("data/lo", b"")
        beside.create("data/log2/x", b"")
        bucket_url, _, query = bucket.partition("?")
        yield open_store(f"{bucket_url}/data/log/?{query}")
        assert beside.get("data/lo") == beside.get("data/log2/x") == b""


def test_the_store_matches_its_url(bucket: str) -> None:
    store = open_store(bucket)
    assert isinstance(store, ObjectStore)
    assert store.location == bucket
    assert repr(store) == f"ObjectStore({bucket!r})"
    assert store.parallel_reads > 1
    assert store.needs_probe
    store.create("a", b"x")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"x"


@pytest.mark.parametrize(
    ("url", "environ", "server"),
    [
        ("s3://b/log", {}, ""),
        ("s3://b/log", {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT": "http://two"}, "http://one"),
        ("s3://b/log", {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT_URL_S3": "http://s3"}, "http://s3"),
        ("s3://b/log?endpoint=http://other", {"AWS_ENDPOINT_URL": "http://one"}, ""),
        ("gs://b/log", {"GOOGLE_BASE_URL": "http://one", "AWS_ENDPOINT_URL": "http://two"}, "http://one"),
        ("az://b/log", {"AZURE_STORAGE_ACCOUNT_NAME": "team"}, "team"),
        ("az://b/log?account_name=other", {"AZURE_STORAGE_ACCOUNT_NAME": "team"}, ""),
        ("az://b", {"AZURE_STORAGE_ACCOUNT_NAME": "team", "AZURE_STORAGE_ENDPOINT": "http://one"}, "http://one team"),
    ],
)
def test_server_contains_the_settings_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, url: str, environ: dict[str, str], server: str
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert open_store(url).server == server


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 7])
def test_large_objects_are_complete(bucket: str, size: int) -> None:
    store = open_store(bucket)
    data = os.urandom(1 << 20) * (size // (1 << 20) + 1)
    writer = store.writer("t/append/x.slices")
    for start in range(0, size, 3_000_000):
        writer.write(memoryview(data)[start : min(size, start + 3_000_000)])
    assert store.stat("t/append/x.slices") is None
    writer.close()
    assert store.get("t/append/x.slices") == data[:size]
    assert (
        store.get("t/append/x.slices", PART_BYTES - 5, 10)
        == data[PART_BYTES - 5 : PART_BYTES + 5][: size - PART_BYTES + 5]
    )


def test_large_writer_never_overwrites(bucket: str) -> None:
    store = open_store(bucket)
    store.create("a", b"first")
    writer = store.writer("a")
    writer.write(bytes(2 * PART_BYTES))
    with pytest.raises(Unavailable, match="already exists"):
        writer.close()
    assert store.get("a") == b"first"


def test_discarded_large_writer_leaves_nothing(bucket: str) -> None:
    store = open_store(bucket)
    writer = store.writer("a")
    writer.write(bytes(2 * PART_BYTES))
    writer.discard()
    assert store.stat("a") is None
    # Parts that have been uploaded would be billed until they are deleted.
    assert b"<Upload>" not in _uploads(bucket)


def _uploads(bucket: str) -> bytes:
    import urllib.request

    name, _, endpoint = bucket.removeprefix("s3://").partition("?endpoint=")
    with urllib.request.urlopen(f"{endpoint}/{name}?uploads") as answer:
        return bytes(answer.read())


def test_names_that_are_not_keys_are_skipped(bucket: str) -> None:
    import obstore

    store = open_store(bucket)
    assert isinstance(store, ObjectStore)
    for name in ["a b", "x/~temporary", "x/ü", "x/ok"]:
        obstore.put(store._client("data"), name, b"x")
    assert [info.key for info in store.list("")] == ["x/ok"]
    assert list(store.list_folders("")) == ["x"]


def test_prefixes_may_end_inside_a_name(bucket: str) -> None:
    store = open_store(bucket)
    characters = "059AZaz._-%=+@,"
    keys = [f"f/{each}{each}x" for each in characters]
    for key in keys:
        assert store.create(key, b"x")
    for key in keys:
        assert [info.key for info in store.list(key[:-2])] == [key]
        assert [info.key for info in store.list(key[:-1])] == [key]


@pytest.mark.parametrize(
    ("prefix", "start"),
    [
        ("", ""),
        ("t/append/", ""),
        ("t/append/00b", "t/append/00a~"),
        ("t/_log/10", "t/_log/1"),
        ("t/_log/0", "t/_log"),
        ("0", ""),
        ("b", "a~"),
        ("t/A", "t/@~"),
        ("t/a.", "t/a-~"),
    ],
)
def test_a_listing_starts_just_before_its_prefix(prefix: str, start: str) -> None:
    assert _start_after(prefix) == start


def test_no_key_sorts_before_the_start_of_its_listing() -> None:
    characters = "059AZaz._-%=+@,"
    for last in characters:
        start = _start_after(f"t/x{last}")
        for follower in ("", *characters):
            assert f"t/x{last}{follower}" > start
        # Few other keys follow the start: none whose last character is smaller, except that of `0`.
        assert last == "0" or all(f"t/x{lower}{lower}" <= start for lower in characters if lower < last)


def test_a_missing_bucket_is_not_a_missing_object(bucket: str) -> None:
    store = open_store(bucket.replace("s3://", "s3://not-"))
    for call in (
        lambda: store.get("a"),
        lambda: store.create("a", b""),
        lambda: list(store.list("")),
        lambda: list(store.list_folders("")),
        lambda: store.delete("a"),
    ):
        with pytest.raises(BadRequest, match=r"bucket .* does not exist"):
            call()


def test_an_unreachable_server_is_reported_in_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
    monkeypatch.setattr("sparklog.storage.object_store._CREATE_ATTEMPTS", 1)
    store = open_store("s3://bucket/log?endpoint=http://127.0.0.1:9")
    for call in (lambda: store.get("a"), lambda: store.create("a", b"")):
        with pytest.raises(Unavailable, match="cannot be reached; check the endpoint") as caught:
            call()
        assert "\n" not in str(caught.value)


def _in_child(url: str, answers: object) -> None:
    try:
        open_store(url).stat("a")
        answers.put("an answer")  # type: ignore[attr-defined]
    except SparklogError as error:
        answers.put(str(error))  # type: ignore[attr-defined]


def test_child_of_a_process_that_used_a_bucket_does_not_hang(bucket: str) -> None:
    open_store(bucket).create("a", b"x")
    context = get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(bucket, answers))
    child.start()
    assert "forked from a process that had used obstore" in answers.get(timeout=300)
    child.join()


def test_a_root_works_in_a_bucket(bucket: str) -> None:
    import sparklog

    root = sparklog.open(sparklog_url := bucket.replace("?", "/data/log?"), create=True)
    topic = root.ensure_topic("orders", partitions=2)
    topic.append(pa.table({"key": [b"k"], "value": [b"v"]}))
    again = sparklog.open(sparklog_url)
    assert again.id == root.id
    assert again.topic("orders").scan().to_table().column("value").to_pylist() == [b"v"]
    with pytest.raises(NotFound):
        sparklog.open(bucket)


@pytest.mark.parametrize(
    ("url", "begins"),
    [("s3://b/log", True), ("gs://b/log", True), ("az://b/log", False), ("s3://b--use1-az4--x-s3/l", False)],
)
def test_start_of_a_listing_after_a_key(url: str, begins: bool) -> None:
    assert open_store(url).lists_after is begins


def test_requests_to_s3_express_go_to_the_zone() -> None:
    express = ObjectStore("s3://logs--use1-az4--x-s3/a?region=us-east-1")._client("data")
    assert express.config["s3_express"] == "true"
    assert "s3_express" not in ObjectStore("s3://logs/a?region=us-east-1")._client("data").config


def test_retained_objects_need_a_checksum_and_get_it(bucket: str) -> None:
    """A bucket with object lock, whose server rejects uploads without the header."""
    boto3 = pytest.importorskip("boto3")
    name, _, endpoint = bucket.removeprefix("s3://").partition("?endpoint=")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=f"{name}-lock", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    locked = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    client.put_object_lock_configuration(Bucket=f"{name}-lock", ObjectLockConfiguration=locked)
    url = bucket.replace(name, f"{name}-lock")
    with pytest.raises(BadRequest, match="its object lock requires checksums; set checksum_algorithm=CRC64NVME in the"):
        open_store(url).create("a", b"x")
    for algorithm in ("crc64nvme", "SHA256"):
        store = open_store(f"{url}&checksum_algorithm={algorithm}")
        assert store.create(f"{algorithm}/a", b"x")
        for size in (3, PART_BYTES + 1):
            writer = store.writer(f"{algorithm}/{size}")
            writer.write(bytes(size))
            writer.close()
            assert store.get(f"{algorithm}/{size}") == bytes(size)
