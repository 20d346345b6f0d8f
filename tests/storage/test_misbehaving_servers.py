"""Occasional behavior of object servers, each simulated by a server. No object is lost or duplicated, and no request
hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest

from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.storage import Store, open_store
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.retries import BUSY_BUDGET_S
from sparklog.storage.uploads import PART_BYTES
from tests.support.pauses import Pauses
from tests.support.stub_bucket import AS_ASKED, CUT, DROP, LATE, SILENT, Answer, StubBucket, stub_bucket

LANDED = True


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    monkeypatch.setattr(ObjectStore, "retry_policy", pauses.policy())
    return pauses


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, pauses: Pauses) -> Iterator[StubBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with stub_bucket() as bucket:
        yield bucket


@pytest.fixture
def store(stub: StubBucket) -> Store:
    return open_store(stub.url)


@pytest.mark.parametrize("status", [409, 412, 429])
def test_a_name_of_another_writer_is_an_error(stub: StubBucket, store: Store, status: int) -> None:
    stub.objects["log/a"] = b"other"
    stub.answer_next("PUT", Answer(status))
    assert store.create("a", b"mine") is False
    assert stub.count("PUT") == 1


@pytest.mark.parametrize("status", [409, 429])
def test_a_rejected_create_is_repeated_if_the_object_does_not_exist(
    stub: StubBucket, store: Store, status: int
) -> None:
    stub.answer_next("PUT", Answer(status), Answer(status))
    assert store.create("a", b"mine") is True
    assert stub.objects == {"log/a": b"mine"}


@pytest.mark.parametrize("first", [DROP, 500, 502, 503])
def test_a_lost_response_of_a_successful_create(stub: StubBucket, store: Store, first: int) -> None:
    # The second request gets 412 because of our own object.
    stub.answer_next("PUT", Answer(first, lands=LANDED))
    assert store.create("a", b"mine") is True
    assert stub.count("PUT") == 2


@pytest.mark.parametrize("first", [DROP, 500, 503])
def test_a_lost_response_of_a_create_that_another_writer_won(stub: StubBucket, store: Store, first: int) -> None:
    stub.answer_next("PUT", Answer(first))
    stub.objects["log/a"] = b"other"
    assert store.create("a", b"mine") is False


@pytest.mark.parametrize("first", [DROP, 500, 503])
def test_a_lost_response_of_a_large_upload_is_not_a_conflict(stub: StubBucket, store: Store, first: int) -> None:
    stub.answer_next("PUT", Answer(first, lands=LANDED))
    writer = store.writer("t/append/x.slices")
    writer.write(b"mine")
    writer.close()
    assert stub.objects == {"log/t/append/x.slices": b"mine"}


@pytest.mark.parametrize("there", [b"mine", b"other", None])
def test_a_create_without_a_response_is_not_sent_again(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, there: bytes | None
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._DOCUMENT_TIMEOUT", timedelta(seconds=0.2))
    stub.silence_s = 0.5
    stub.answer_next("PUT", Answer(SILENT, lands=there == b"mine"))
    if there == b"other":
        stub.objects["log/a"] = there
    if there is None:
        with pytest.raises(Unavailable, match="the request timed out"):
            open_store(stub.url).create("a", b"mine")
    else:
        assert open_store(stub.url).create("a", b"mine") is (there == b"mine")
    assert stub.count("PUT") <= 1


def test_requests_to_a_stopped_server_fail_soon(stub: StubBucket, store: Store, pauses: Pauses) -> None:
    # By a commit, whose caller continues.
    stub.always["PUT"] = Answer(503, "SlowDown")
    with pytest.raises(Unavailable, match="the store is busy"):
        store.create("a", b"mine")
    assert stub.count("PUT") == 4
    assert pauses.seconds < 1


@pytest.mark.parametrize("there", [b"mine", b"other", None])
def test_after_a_gateway_timeout_a_create_is_read_and_not_repeated(
    stub: StubBucket, store: Store, there: bytes | None
) -> None:
    stub.answer_next("PUT", Answer(504, lands=there == b"mine"))
    if there == b"other":
        stub.objects["log/a"] = there
    if there is None:
        with pytest.raises(Unavailable, match="the store returned 504"):
            store.create("a", b"mine")
    else:
        assert store.create("a", b"mine") is (there == b"mine")
    assert stub.count("PUT") == 1


KEY = "t/append/x.slices"
BUSY = [Answer(503, "SlowDown"), Answer(429), Answer(500, "InternalError"), Answer(502), Answer(504), Answer(408)]
CALLS = {
    "GET": lambda store: store.get("a"),
    "range": lambda store: store.get("a", 1, 3),
    "HEAD": lambda store: store.stat("a"),
    "LIST": lambda store: [info.key for info in store.list("")],
    "folders": lambda store: list(store.list_folders("")),
    "POST": lambda store: store.delete("b"),
    "PUT": lambda store: write(store, b"mine"),
    "clock": lambda store: store.now_ms(),
}
VERBS = {"range": "GET", "folders": "LIST", "clock": "PUT"}


def write(store: Store, *parts: bytes) -> None:
    writer = store.writer(KEY)
    for part in parts:
        writer.write(part)
    writer.close()


@pytest.mark.parametrize(("name", "answer"), [*product(CALLS, BUSY[:1]), *product(("GET", "PUT"), BUSY[1:])], ids=str)
def test_requests_to_a_busy_server_are_retried_for_seconds(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses, name: str, answer: Answer
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
    stub.objects.update({"log/a": b"hello", "log/b": b""})
    stub.answer_next(VERBS.get(name, name), *[answer] * 7)
    CALLS[name](open_store(stub.url))
    assert len(pauses.made) == 7
    assert 5 < pauses.seconds < BUSY_BUDGET_S


@pytest.mark.parametrize("name", CALLS)
def test_requests_to_a_busy_server_fail_within_the_budget(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses, name: str
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
    stub.objects["log/a"] = b"hello"
    stub.always[VERBS.get(name, name)] = Answer(503, "SlowDown")
    with pytest.raises(Unavailable, match="the store is busy" if name != "POST" else "503|the store is busy"):
        CALLS[name](open_store(stub.url))
    assert BUSY_BUDGET_S / 2 < pauses.seconds <= BUSY_BUDGET_S


@pytest.mark.parametrize("name", ["GET", "range", "LIST", "folders", "POST"])
@pytest.mark.parametrize("retries", [0, 3], ids=["ours", "of-the-client"])
def test_a_request_with_a_truncated_response_is_retried(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses, name: str, retries: int
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", retries)
    monkeypatch.setattr("sparklog.storage.object_store._clients", {})
    stub.objects.update({"log/a": b"hello", "log/b": b"", "log/c/d": b""})
    expected = {"GET": b"hello", "range": b"ell", "LIST": ["a", "b", "c/d"], "folders": ["c"], "POST": None}
    stub.answer_next(VERBS.get(name, name), *[Answer(CUT)] * 2)
    assert CALLS[name](open_store(stub.url)) == expected[name]
    assert stub.count(VERBS.get(name, name)) == 3


def test_requests_fail_if_a_server_truncates_all_listings(stub: StubBucket, store: Store, pauses: Pauses) -> None:
    stub.always["LIST"] = Answer(CUT)
    for call in ("LIST", "folders"):
        with pytest.raises(Unavailable, match="the connection ended in the middle of the response"):
            CALLS[call](store)
    assert pauses.seconds > BUSY_BUDGET_S / 2


def test_the_clock_object_is_not_empty(stub: StubBucket, store: Store) -> None:
    sizes = []
    monitored = stub.objects

    class Objects(dict[str, bytes]):
        def __setitem__(self, key: str, data: bytes) -> None:
            sizes.append(len(data))
            super().__setitem__(key, data)

    stub.objects = Objects(monitored)
    store.now_ms()
    assert sizes == [1]


def test_a_bulk_delete_is_repeated_for_a_busy_key(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
    error = "<DeleteResult><Error><Key>log/b</Key><Code>SlowDown</Code><Message>x</Message></Error></DeleteResult>"
    stub.answer_next("POST", Answer(200, body=error))
    stub.objects.update({"log/a": b"", "log/b": b""})
    open_store(stub.url).delete_many(["a", "b"])
    assert stub.count("POST") == 2
    assert not stub.objects
    assert len(pauses.made) == 1


def test_a_retried_listing_continues_after_its_last_page(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)
    stub.page = 500
    names = [f"{number:04}" for number in range(2300)]
    stub.objects.update({f"log/{name}": b"" for name in names})
    for turn in (0, 1, 3, 4):
        stub.requests.clear()
        stub.answer_next("LIST", *[Answer(AS_ASKED)] * turn, Answer(503, "SlowDown"))
        assert [info.key for info in open_store(stub.url).list("")] == names
    assert len(pauses.made) == 4
    assert "start-after=log%2F1999" in stub.requests[5][1]


def test_a_data_object_is_looked_up_if_a_gateway_drops_the_responses(
    stub: StubBucket, store: Store, pauses: Pauses
) -> None:
    stub.always["PUT"] = Answer(504, lands=LANDED)
    write(store, b"mine")
    assert stub.objects == {f"log/{KEY}": b"mine"}
    assert pauses.seconds > BUSY_BUDGET_S / 2


@pytest.mark.parametrize("status", [409, 412])
def test_our_own_data_object_that_is_reported_as_existing_is_stored(
    stub: StubBucket, store: Store, status: int
) -> None:
    # A gateway repeats a request after a lost response.
    stub.answer_next("PUT", Answer(status, lands=LANDED))
    write(store, b"mine")
    assert stub.objects == {f"log/{KEY}": b"mine"}
    assert stub.count("PUT") == 1


@pytest.mark.parametrize("there", [b"other", b"four"])
def test_a_data_object_of_another_writer_is_never_treated_as_ours(stub: StubBucket, store: Store, there: bytes) -> None:
    stub.objects[f"log/{KEY}"] = there
    with pytest.raises(Unavailable, match="already exists in s3://"):
        write(store, b"mine")
    assert stub.objects == {f"log/{KEY}": there}


def test_a_data_object_without_a_response_is_sent_again(stub: StubBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.storage.object_store._DOCUMENT_TIMEOUT", timedelta(seconds=0.2))
    stub.silence_s = 0.5
    stub.answer_next("PUT", Answer(SILENT))
    write(open_store(stub.url), b"mine")
    assert stub.objects == {f"log/{KEY}": b"mine"}
    assert stub.count("PUT") == 2


LARGE = (bytes(PART_BYTES), b"end")


@pytest.mark.parametrize("first", [500, 503, DROP])
def test_an_upload_with_a_lost_last_response_is_stored(stub: StubBucket, store: Store, first: int) -> None:
    # The request is repeated, and its upload no longer exists.
    stub.answer_next("COMPLETE", Answer(first, lands=LANDED))
    write(store, *LARGE)
    assert stub.count("COMPLETE") == 2
    assert len(stub.objects[f"log/{KEY}"]) == PART_BYTES + 3


@pytest.mark.parametrize("answers", [[Answer(404, "NoSuchUpload")], [Answer(500), Answer(404, "NoSuchUpload")]])
def test_a_missing_upload_is_not_a_missing_object(stub: StubBucket, store: Store, answers: list[Answer]) -> None:
    # For an append, "not found" would mean that its topic was deleted.
    stub.answer_next("COMPLETE", *answers)
    with pytest.raises(Unavailable, match=r"cannot create t/append/.*: the store returned 404 \(NoSuchUpload\)"):
        write(store, *LARGE)
    assert not stub.objects


@pytest.mark.parametrize("verb", ["BEGIN", "PART", "COMPLETE"])
def test_a_busy_server_delays_an_upload(
    stub: StubBucket, store: Store, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("sparklog.storage.object_store.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("sparklog.storage.object_store.LONGEST_PAUSE_S", 0.002)
    stub.answer_next(verb, *[Answer(503, "SlowDown")] * 20)
    write(store, *LARGE)
    assert len(stub.objects[f"log/{KEY}"]) == PART_BYTES + 3


def test_the_timeout_depends_on_the_size(stub: StubBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PUT of 8 MiB may take longer than the response to a small one."""
    monkeypatch.setattr("sparklog.storage.object_store._DOCUMENT_TIMEOUT", timedelta(seconds=0.2))
    stub.silence_s = 0.5
    for size, puts in ((PART_BYTES, 1), (600_000, 1), (100, 2)):
        stub.requests.clear()
        stub.objects.clear()
        stub.answer_next("PUT", Answer(LATE))
        write(open_store(stub.url), bytes(size))
        assert stub.count("PUT") == puts
    stub.answer_next("PUT", Answer(LATE))
    assert open_store(stub.url).create("t/_log/large.json", bytes(600_000))


def test_a_server_without_conditional_writes_is_rejected_immediately(stub: StubBucket, store: Store) -> None:
    stub.answer_next("PUT", *[Answer(501, "NotImplemented")] * 50)
    with pytest.raises(BadRequest, match="does not support conditional requests"):
        store.create("a", b"mine")
    assert stub.count("PUT") == 1


def test_not_modified_means_that_the_object_exists(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"other"
    stub.answer_next("PUT", Answer(304))
    assert store.create("a", b"mine") is False


def test_a_listing_that_ignores_its_start_is_filtered(stub: StubBucket, store: Store) -> None:
    stub.heeds_offset = False
    stub.objects.update({f"log/{name}": b"" for name in ("a", "b/1", "b/2", "b/3", "bb", "c")})
    assert [info.key for info in store.list("b/", "b/1")] == ["b/2", "b/3"]
    assert [info.key for info in store.list("b")] == ["b/1", "b/2", "b/3", "bb"]


def test_an_unsorted_listing_is_rejected(stub: StubBucket, store: Store) -> None:
    stub.reverse = True
    stub.objects.update({"log/a": b"", "log/b": b""})
    with pytest.raises(BadRequest, match=r"unsorted listings \(a after b\)"):
        list(store.list(""))


@pytest.mark.parametrize("status", [200, 404])
def test_deleting_a_missing_object_succeeds(stub: StubBucket, status: int) -> None:
    store = open_store(stub.url + "&disable_bulk_delete=true")
    stub.answer_next("DELETE", Answer(status))
    store.delete("a")
    assert stub.count("POST") == 0


def test_deletes_are_sent_in_one_request(stub: StubBucket, store: Store) -> None:
    stub.objects.update({f"log/{number}": b"" for number in range(1500)})
    store.delete_many([str(number) for number in range(1400)])
    assert len(stub.objects) == 100
    assert stub.count("POST") == 2


def test_a_range_after_the_end_is_empty(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"hello"
    assert store.get("a", 3, 100) == b"lo"
    assert store.get("a", 5, 10) == b""
    assert store.get("a", 9) == b""
    # Never a range from the end, which Azure does not support.
    assert not any("bytes=-" in path for _, path in stub.requests)


def test_reads_are_repeated(stub: StubBucket, store: Store) -> None:
    stub.objects["log/a"] = b"hello"
    stub.answer_next("GET", Answer(503), Answer(500))
    assert store.get("a") == b"hello"


def test_times_are_whole_seconds_and_objects_never_look_too_old(stub: StubBucket, store: Store) -> None:
    store.create("a", b"")
    info = store.stat("a")
    assert info is not None
    assert info.modified_ms == 1_790_000_000_000, "made up to 999 ms later"
    assert store.now_ms() == 1_790_000_000_000 - 999
    assert [*stub.objects] == ["log/a"]


@pytest.mark.parametrize("name", ["a%20b", "a=b,c", "a+b@c", "%2F"])
def test_keys_are_passed_unchanged(bucket: str, name: str) -> None:
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
def test_a_denied_request_reports_the_missing_permission(stub: StubBucket, store: Store, verb: str, right: str) -> None:
    stub.answer_next(verb, Answer(403, "AccessDenied"))
    call = {
        "PUT": lambda: store.create("a", b""),
        "GET": lambda: store.get("a"),
        "LIST": lambda: list(store.list("")),
        "POST": lambda: store.delete("a"),
    }[verb]
    with pytest.raises(Unavailable, match=right) as caught:
        call()
    assert caught.value.is_denied
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "InvalidAccessKeyId", "the credentials are invalid"),
        (403, "SignatureDoesNotMatch", "the credentials are invalid"),
        (400, "ExpiredToken", "the credentials are invalid"),
        (404, "NoSuchBucket", "bucket bucket does not exist"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (403, "RequestTimeTooSkewed", "this host's clock is wrong"),
        (400, "InvalidRequest", "the store returned 400 .InvalidRequest., which a retry would not change"),
        (400, "RequestTimeout", "the store returned 400 .RequestTimeout.; try again later"),
        (418, "Teapot", "the store returned 418 .Teapot., which a retry would not change"),
    ],
)
def test_errors_are_one_line(stub: StubBucket, store: Store, status: int, code: str, words: str) -> None:
    stub.always["GET"] = Answer(status, code)
    with pytest.raises((Unavailable, BadRequest), match=words) as caught:
        store.get("a")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, NotFound)
