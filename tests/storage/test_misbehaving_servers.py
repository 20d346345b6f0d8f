"""What servers of objects do now and then, each against a server that does it: nothing is lost, doubled or awaited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.storage import Store, open_store
from tests.support.stub_bucket import DROP, SILENT, Answer, StubBucket, stub_bucket

LANDED = True


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr("sparklog.storage.object_store._FIRST_PAUSE_S", 0.001)
    with stub_bucket() as bucket:
        yield bucket


@pytest.fixture
def store(stub: StubBucket) -> Store:
    return open_store(stub.url)


@pytest.mark.parametrize("status", [409, 412, 429])
def test_taken_by_another_writer(stub: StubBucket, store: Store, status: int) -> None:
    stub.objects["log/a"] = b"other"
    stub.answer_next("PUT", Answer(status))
    assert store.create("a", b"mine") is False
    assert stub.count("PUT") == 1


@pytest.mark.parametrize("status", [409, 429])
def test_refused_and_nothing_is_there(stub: StubBucket, store: Store, status: int) -> None:
    stub.answer_next("PUT", Answer(status), Answer(status))
    assert store.create("a", b"mine") is True
    assert stub.objects == {"log/a": b"mine"}


@pytest.mark.parametrize("first", [DROP, 500, 502, 503])
def test_lost_answer_of_a_create_that_landed(stub: StubBucket, store: Store, first: int) -> None:
    # The second request gets 412, from our own object.
    stub.answer_next("PUT", Answer(first, lands=LANDED))
    assert store.create("a", b"mine") is True
    assert stub.count("PUT") == 2


@pytest.mark.parametrize("first", [DROP, 500, 503])
def test_lost_answer_of_a_create_that_another_writer_won(stub: StubBucket, store: Store, first: int) -> None:
    stub.answer_next("PUT", Answer(first))
    stub.objects["log/a"] = b"other"
    assert store.create("a", b"mine") is False


@pytest.mark.parametrize("first", [DROP, 500, 503])
def test_lost_answer_of_a_large_upload_is_no_clash(stub: StubBucket, store: Store, first: int) -> None:
    stub.answer_next("PUT", Answer(first, lands=LANDED))
    writer = store.writer("t/append/x.slices")
    writer.write(b"mine")
    writer.close()
    assert stub.objects == {"log/t/append/x.slices": b"mine"}


@pytest.mark.parametrize("there", [b"mine", b"other", None])
def test_create_without_an_answer_is_not_sent_again(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, there: bytes | None
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._DOCUMENT_TIMEOUT", timedelta(seconds=0.2))
    stub.silence_s = 0.5
    stub.answer_next("PUT", Answer(SILENT, lands=there == b"mine"))
    if there == b"other":
        stub.objects["log/a"] = there
    if there is None:
        with pytest.raises(Unavailable, match="no answer came in time"):
            open_store(stub.url).create("a", b"mine")
    else:
        assert open_store(stub.url).create("a", b"mine") is (there == b"mine")
    assert stub.count("PUT") <= 1


def test_server_that_stays_down_is_given_up_soon(stub: StubBucket, store: Store) -> None:
    stub.answer_next("PUT", *[Answer(503, "SlowDown")] * 50)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="asks to slow down"):
        store.create("a", b"mine")
    assert time.monotonic() - began < 5
    assert stub.count("PUT") <= 5


def test_server_without_conditional_writes_is_refused_at_once(stub: StubBucket, store: Store) -> None:
    stub.answer_next("PUT", *[Answer(501, "NotImplemented")] * 50)
    with pytest.raises(BadRequest, match="does not know conditional requests"):
        store.create("a", b"mine")
    assert stub.count("PUT") == 1


def test_not_modified_means_taken(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"other"
    stub.answer_next("PUT", Answer(304))
    assert store.create("a", b"mine") is False


def test_listing_that_does_not_heed_its_beginning(stub: StubBucket, store: Store) -> None:
    stub.heeds_offset = False
    stub.objects.update({f"log/{name}": b"" for name in ("a", "b/1", "b/2", "b/3", "bb", "c")})
    assert [info.key for info in store.list("b/", "b/1")] == ["b/2", "b/3"]
    assert [info.key for info in store.list("b")] == ["b/1", "b/2", "b/3", "bb"]


def test_listing_in_no_order_is_refused(stub: StubBucket, store: Store) -> None:
    stub.reverse = True
    stub.objects.update({"log/a": b"", "log/b": b""})
    with pytest.raises(BadRequest, match="lists a behind b"):
        list(store.list(""))


@pytest.mark.parametrize("status", [200, 404])
def test_delete_of_what_is_not_there(stub: StubBucket, status: int) -> None:
    store = open_store(stub.url + "&disable_bulk_delete=true")
    stub.answer_next("DELETE", Answer(status))
    store.delete("a")
    assert stub.count("POST") == 0


def test_deletes_go_in_one_request(stub: StubBucket, store: Store) -> None:
    stub.objects.update({f"log/{number}": b"" for number in range(1500)})
    store.delete_many([str(number) for number in range(1400)])
    assert len(stub.objects) == 100
    assert stub.count("POST") == 2


def test_range_behind_the_end_is_empty(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"hello"
    assert store.get("a", 3, 100) == b"lo"
    assert store.get("a", 5, 10) == b""
    assert store.get("a", 9) == b""
    # Never a range from the end: Azure has none.
    assert not any("bytes=-" in path for _, path in stub.requests)


def test_reads_are_repeated(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"hello"
    stub.answer_next("GET", Answer(503), Answer(500))
    assert store.get("a") == b"hello"


def test_times_have_whole_seconds_and_no_object_looks_older_than_it_is(stub: StubBucket, store: Store) -> None:
    store.create("a", b"")
    info = store.stat("a")
    assert info is not None
    assert info.modified_ms == 1_790_000_000_000, "made up to 999 ms later"
    assert store.now_ms() == 1_790_000_000_000 - 999
    assert [*stub.objects] == ["log/a"]


@pytest.mark.parametrize("name", ["a%20b", "a=b,c", "a+b@c", "%2F"])
def test_keys_pass_as_they_are(bucket: str, name: str) -> None:
    store = open_store(bucket)
    store.create(f"x/{name}/y", b"1")
    store.create(f"x/{name}z", b"2")
    assert store.get(f"x/{name}/y") == b"1"
    assert [info.key for info in store.list("x/")] == sorted([f"x/{name}/y", f"x/{name}z"])
    assert list(store.list_folders("x/")) == [name]
    assert [info.key for info in store.list(f"x/{name}/")] == [f"x/{name}/y"]


@pytest.mark.parametrize(
    ("verb", "right"),
    [("PUT", "s3:PutObject"), ("GET", "s3:GetObject"), ("LIST", "s3:ListBucket"), ("POST", "s3:DeleteObject")],
)
def test_denied_verb_names_the_missing_right(stub: StubBucket, store: Store, verb: str, right: str) -> None:
    stub.answer_next(verb, Answer(403, "AccessDenied"))
    call = {
        "PUT": lambda: store.create("a", b""),
        "GET": lambda: store.get("a"),
        "LIST": lambda: list(store.list("")),
        "POST": lambda: store.delete("a"),
    }[verb]
    with pytest.raises(Unavailable, match=right) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "InvalidAccessKeyId", "the credentials are refused"),
        (403, "SignatureDoesNotMatch", "the credentials are refused"),
        (400, "ExpiredToken", "the credentials are refused"),
        (404, "NoSuchBucket", "there is no bucket bucket"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (418, "Teapot", "the store answered 418 .Teapot."),
    ],
)
def test_errors_are_one_line(stub: StubBucket, store: Store, status: int, code: str, words: str) -> None:
    stub.answer_next("GET", Answer(status, code))
    with pytest.raises((Unavailable, BadRequest), match=words) as caught:
        store.get("a")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, NotFound)
