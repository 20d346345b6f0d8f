"""Test a bucket that denies access or is down: each entry point reports the cause in one line, and does not show
secrets.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import sparklog
from sparklog.storage import Store, open_store
from sparklog.storage.locations import join
from tests.support.moto_server import KEY_ID, SECRET
from tests.support.pauses import Pauses
from tests.support.stub_bucket import Answer, StubBucket, stub_bucket
from tests.test_entry_points import READERS, RECORDS, WRITERS, answer

TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN7f3c"
HIDDEN = (KEY_ID, SECRET, TOKEN, quote(SECRET, safe=""))
LEAKY = "</Code><AWSAccessKeyId>{}</AWSAccessKeyId><StringToSign>{} {}</StringToSign><Code>x".format(*HIDDEN)
"""The body of an error response after its code. S3 returns secrets like these if it rejects a signature."""
DENIED = Answer(403, f"AccessDenied{LEAKY}")
STARTS_SPARK = ("job verify",)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBucket]:
    """Create a bucket with a root that has a topic with three records."""
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": SECRET, "SESSION_TOKEN": TOKEN}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("sparklog.storage.object_store.ObjectStore.retry_policy", Pauses().policy())
    # Each test creates a root, and none of them tests the races that the probe of a new bucket detects.
    monkeypatch.setattr("sparklog.storage.object_store.ObjectStore.probe_rounds", 2, raising=False)
    with stub_bucket() as bucket:
        bucket.clock_s = time.time
        sparklog.open(bucket.url, create=True).create_topic("t").append(RECORDS)
        yield bucket


@pytest.fixture
def root(tmp_path: Path) -> str:
    made = sparklog.open(tmp_path / "log", create=True)
    made.create_topic("t").append(RECORDS)
    return made.location


def assert_hidden(*texts: object) -> None:
    for text in texts:
        for secret in HIDDEN:
            assert secret not in str(text)


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(
    ("verbs", "entry_point", "words"),
    [
        ("GET", "consume t --root @", "cannot read log/_root.json in s3://.*; this requires s3:GetObject"),
        ("GET", "load", "access is denied .AccessDenied.; this requires s3:GetObject"),
        ("GET", "load a stream", "this requires s3:GetObject"),
        ("LIST", "topics list --root @", "cannot list .*; this requires s3:ListBucket"),
        ("LIST", "verify --root @", "this requires s3:ListBucket"),
        ("LIST", "open_view", None),
        ("PUT", "produce", "cannot create t/append/.*; this requires s3:PutObject"),
        ("PUT", "topics create", "cannot create .* in s3://.*; this requires s3:PutObject"),
        ("PUT", "clone", "this requires s3:PutObject"),
        ("PUT", "consume t --root @", None),
        ("PUT", "load", None),
        ("PUT POST DELETE", "verify --root @", None),
        ("PUT POST DELETE", "backup of", "cannot create .*; this requires s3:PutObject"),
        ("POST DELETE", "produce", None),
        ("HEAD", "produce", r"access is denied \(403\); this requires s3:GetObject"),
    ],
)
def test_denied_permission_is_one_line_and_other_calls_work(
    stub: StubBucket, root: str, verbs: str, entry_point: str, words: str | None
) -> None:
    for verb in verbs.split():
        stub.always[verb] = DENIED
    call = {**READERS, **WRITERS}[entry_point]
    if words is None:
        call(stub.url, root)
        return
    with pytest.raises(Exception, match=words) as caught:
        call(stub.url, root)
    # A command prints the code. Spark shows the code as the name of the error.
    codes = (getattr(caught.value, "code", ""), type(caught.value).__name__, str(caught.value))
    assert any("SPARKLOG_UNAVAILABLE" in each for each in codes)
    assert "\n" not in str(caught.value)
    assert_hidden(caught.value)


SAMPLE = ("open_view", "verify", "load", "load a stream", "topics list --root @", "job compact", "open, create", "save")
"""Entry points of each kind: functions, Spark calls, commands and jobs, for reading and writing."""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Answer(403, f"InvalidAccessKeyId{LEAKY}"), "the credentials are invalid (InvalidAccessKeyId)"),
        (Answer(403, f"SignatureDoesNotMatch{LEAKY}"), "the credentials are invalid (SignatureDoesNotMatch)"),
        (Answer(404, f"NoSuchBucket{LEAKY}"), "bucket bucket does not exist; create it or check its name"),
        (DENIED, "access is denied (AccessDenied)"),
        (None, "the server cannot be reached"),
    ],
    ids=["wrong key", "wrong secret", "no bucket", "denied", "away"],
)
def test_store_errors_are_one_line_and_do_not_show_secrets(
    stub: StubBucket,
    root: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: Answer | None,
    words: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    location = stub.url
    if fault is None:
        monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
        location = "s3://bucket/log?endpoint=http://127.0.0.1:9"
    else:
        stub.always.update(dict.fromkeys(("GET", "PUT", "LIST", "HEAD", "POST", "DELETE"), fault))
    for name in SAMPLE:
        text = answer({**READERS, **WRITERS}[name], location, root)
        assert words in text, name
        assert_hidden(text)
    assert_hidden(caplog.text, *capfd.readouterr())


def in_plain_python(location: str) -> Iterator[Any]:
    """Return the objects that Spark pickles for a write and a read, and the `repr` of other objects."""
    from pyspark.sql.types import BinaryType, StructType

    from sparklog.datasource.data_source import SparklogDataSource
    from sparklog.datasource.options import parse_options
    from sparklog.datasource.writer import plan_write, publish, write_task
    from sparklog.opening import resolve

    columns = StructType().add("key", BinaryType()).add("value", BinaryType())
    options = {"path": location, "topic": "t"}
    plan = plan_write(resolve(location), parse_options(options), columns)
    message = write_task(plan, [pa.record_batch([pa.array([b"k"]), pa.array([b"v"])], ["key", "value"])], "a")
    publish(plan, [message], None)
    made = SparklogDataSource({"path": location, "subscribe": "t"})
    reader, stream = made.reader(columns), made.streamReader(columns)
    partitions = reader.partitions()
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    yield from (plan, message, made, SparklogDataSource(options).writer(columns, False), reader, *partitions)
    yield from (start, end, *stream.partitions(start, end))
    store = open_store(location)
    root = sparklog.open(location)
    yield from (store, root, root.topic("t"), resolve(location), sparklog.open_view(location), parse_options(options))


def everything_in(store: Store) -> Iterator[tuple[str, bytes]]:
    for info in store.list(""):
        yield info.key, store.get(info.key)


def test_secrets_are_never_shown(
    bucket: str, root: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Check objects, pickles, string forms of objects, output and log lines, including `DEBUG` lines of
    all libraries.
    """
    pytest.importorskip("pyspark", "4.2")
    caplog.set_level(logging.DEBUG)
    url = join(bucket, "log")
    sparklog.open(url, create=True).create_topic("t").append(RECORDS)
    pickles = 0
    for thing in in_plain_python(url):
        assert_hidden(repr(thing), str(thing))
        data = _pickled(thing)
        pickles += url.encode() in data
        assert not any(secret.encode() in data for secret in HIDDEN)
    assert pickles >= 8
    for name in ("clone", "compact", "verify", "topics list --root @", "report --json --root @", "metrics --root @"):
        READERS[name](url, root)
    sparklog.backup(url, join(bucket, "backups"))
    sparklog.restore(join(bucket, "backups"), join(bucket, "again"))
    keys = 0
    for key, data in everything_in(open_store(bucket)):
        keys += 1
        assert not any(secret.encode() in data or secret in key for secret in HIDDEN), key
    assert keys > 20
    assert_hidden(caplog.text, *capfd.readouterr())


def _pickled(thing: object) -> bytes:
    try:
        return pickle.dumps(thing)
    except (TypeError, pickle.PicklingError, AttributeError):
        return b""  # The object cannot be pickled, so it never leaves the process.
