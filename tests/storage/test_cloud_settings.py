"""Settings and credentials, as seen by a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.storage import Store, open_store
from sparklog.storage.uploads import PART_BYTES
from tests.support.stub_bucket import StubBucket, stub_bucket


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    file = tmp_path / "credentials"
    file.write_text("[team]\naws_access_key_id = TEAM\naws_secret_access_key = d\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with stub_bucket() as bucket:
        yield bucket


def use(store: Store) -> None:
    """Make a request of each kind."""
    store.create("a", b"x")
    for size in (3, PART_BYTES + 1):
        writer = store.writer(f"t/append/{size}")
        writer.write(bytes(size))
        writer.close()
    store.get("a", 0, 1)
    list(store.list(""))
    store.delete("a")


def test_a_profile_in_the_url_overrides_keys_in_the_environment(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the keys of the environment")
    use(open_store(stub.url + "&profile=team"))
    assert all("Credential=TEAM/" in headers["authorization"] for _, headers in stub.headers)
    assert not any("x-amz-security-token" in headers for _, headers in stub.headers)
    with pytest.raises(BadRequest, match="has no keys for the profile nosuch"):
        open_store(stub.url + "&profile=nosuch").get("a")


def test_keys_in_the_environment_override_the_profile_of_the_environment(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    use(open_store(stub.url))
    assert all("Credential=ENVIRONMENT/" in headers["authorization"] for _, headers in stub.headers)


def test_requests_to_a_requester_pays_bucket_have_the_header(stub: StubBucket) -> None:
    use(open_store(stub.url + "&request_payer=true"))
    assert {verb for verb, _ in stub.requests} >= {"PUT", "BEGIN", "PART", "COMPLETE", "GET", "HEAD", "LIST", "POST"}
    assert all(headers["x-amz-request-payer"] == "requester" for _, headers in stub.headers)


@pytest.mark.parametrize("given", ["url", "environment"])
def test_uploads_carry_a_checksum(stub: StubBucket, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    if given == "environment":
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "CRC64NVME")
    use(open_store(stub.url + ("&checksum_algorithm=crc64nvme" if given == "url" else "")))
    uploads = [headers for verb, headers in stub.headers if verb in ("PUT", "PART")]
    assert len(uploads) == 4
    assert all("x-amz-checksum-crc64nvme" in headers for headers in uploads)
    with pytest.raises(BadRequest, match="checksum_algorithm must be SHA256 or CRC64NVME"):
        open_store(stub.url + "&checksum_algorithm=MD5")


def test_virtual_hosted_requests_omit_the_bucket_from_the_path(stub: StubBucket) -> None:
    open_store(stub.url + "&virtual_hosted_style_request=true").create("a", b"x")
    assert stub.requests == [("PUT", "/log/a")]


@pytest.mark.parametrize(
    ("value", "words"),
    [("disabled", "AWS_CONDITIONAL_PUT disables conditional requests"), ("x", "settings are invalid")],
)
def test_disabled_conditional_requests_are_reported_in_one_line(
    stub: StubBucket, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", value)
    store = open_store(stub.url)
    with pytest.raises(Exception, match=words) as caught:
        store.create("a", b"x")
    assert caught.value.code in ("SPARKLOG_BAD_REQUEST", "SPARKLOG_UNAVAILABLE")
    assert "\n" not in str(caught.value)
    with pytest.raises(Exception, match=words):
        store.writer("b").close()
    assert not stub.objects
