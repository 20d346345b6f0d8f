"""`sparklog doctor --store`: one line per guarantee of a store, the missing permission, and no objects left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from sparklog.doctor import FAIL, OK, WARN, examine_store
from sparklog.doctor.examine import check_store
from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.journal.names import create_root_id
from sparklog.log.journal.probe_results import discard_result
from sparklog.storage import LocalStore, open_store
from sparklog.storage.store import Store
from tests.support.command_line import invoke
from tests.support.stub_bucket import StubBucket, stub_bucket

EXAMINE = import_module("sparklog.doctor.examine")  # `sparklog.doctor.examine` is its function
PROMISES = ["create", "read", "names", "list", "clock", "delete", "store"]


class Careless(LocalStore):
    """A store that reports success to all writers of an object."""

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return True


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    # The clock of the stub does not advance.
    monkeypatch.setattr(EXAMINE, "MAX_AHEAD_MS", 1 << 60)
    with stub_bucket() as bucket:
        yield bucket


def statuses(location: str) -> dict[str, str]:
    return {finding.check: finding.status for finding in examine_store(location)}


def test_directory_meets_all_guarantees_and_remains_empty(tmp_path: Path) -> None:
    result = invoke(["doctor", "--store", str(tmp_path)], {})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[OK, name] for name in PROMISES]
    assert f"{tmp_path} is suitable for a root: 1 race of 8 threads" in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_bucket_meets_all_guarantees_and_remains_empty(bucket: str) -> None:
    assert statuses(f"{bucket.partition('?')[0]}/log?{bucket.partition('?')[2]}") == dict.fromkeys(PROMISES, OK)
    assert list(open_store(bucket).list("")) == []


@pytest.mark.parametrize(
    ("verb", "check", "status", "right"),
    [
        ("PUT", "create", FAIL, "this requires s3:PutObject"),
        ("GET", "create", FAIL, "this requires s3:GetObject"),
        ("LIST", "list", FAIL, "this requires s3:ListBucket"),
        ("DELETE", "delete", WARN, "this requires s3:DeleteObject"),
    ],
)
def test_denied_request_reports_the_missing_permission(
    stub: StubBucket, verb: str, check: str, status: str, right: str
) -> None:
    stub.denied = frozenset([verb])
    result = invoke(["doctor", "--json", "--store", stub.url], {})
    findings = {item["check"]: item for item in json.loads(result.stdout)}
    (line,) = [item["found"] for item in findings.values() if "access is denied" in item["found"]]
    assert right in line
    assert findings[check]["found"] == line
    assert "\n" not in line
    assert "sparklog doctor --store" in findings[check]["fix"]
    assert findings[check]["status"] == status
    assert findings["store"]["status"] == (OK if status == WARN else FAIL)
    assert ("could not be tested" if status == FAIL else "is suitable for a root") in findings["store"]["found"]
    assert result.exit_code == int(status == FAIL)


@pytest.mark.parametrize(
    ("location", "words", "fix"),
    [
        ("{tmp}/none", "does not exist", "mkdir -p {tmp}/none"),
        ("{tmp}/file", "is a file", "another --store"),
        ("s3://key:secret@bucket/log", "must not contain a user or keys", "another --store"),
        ("dbfs:/mnt/log", "dbfs: locations are not supported", "another --store"),
    ],
)
def test_locations_without_a_store(tmp_path: Path, location: str, words: str, fix: str) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = examine_store(location.format(tmp=tmp_path))
    assert finding.status == FAIL
    assert words in finding.found
    assert fix.format(tmp=tmp_path) in finding.fix
    assert not (tmp_path / "none").exists()


def test_store_with_two_winners_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXAMINE, "open_store", Careless)
    first, last = examine_store(str(tmp_path))
    assert (first.check, first.status, last.check, last.status) == ("create", FAIL, "store", FAIL)
    assert last.found == f"{tmp_path} is not suitable for a root: create"
    assert "8 of 8 threads that created the same object concurrently succeeded" in first.found
    assert "docs/reference/stores.md" in first.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ahead_ms", "status", "words"),
    [
        (0, OK, "the store uses the clock of this host"),
        (10_000, OK, "10.0 s ahead of the store's"),
        (10_001, WARN, "10.0 s ahead of the store's"),
        (-10_000, OK, "10.0 s behind the store's"),
        (-10_001, WARN, "10.0 s behind the store's"),
        (300_000, WARN, "300.0 s ahead of the store's"),
        (300_001, FAIL, "300.0 s ahead of the store's; commits fail if it is more than 300 s ahead"),
        (-400_000, WARN, "400.0 s behind the store's"),
    ],
)
def test_clock_ahead_fails_and_clock_behind_is_a_warning(ahead_ms: int, status: str, words: str) -> None:
    finding = EXAMINE._clock(ahead_ms)
    assert (finding.check, finding.status) == ("clock", status)
    assert finding.found.endswith(words)
    assert bool(finding.fix) == (status != OK)


def test_store_option_excludes_other_options(tmp_path: Path) -> None:
    assert invoke(["doctor", "--spark", "--store", str(tmp_path)], {}).exit_code == 2


def keys(store: Store) -> list[str]:
    return [info.key for info in store.list("_probe/")]


def test_probe_result_of_a_root_is_renewed_or_discarded(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(bucket)
    check_store(store)
    assert keys(store) == [], "it is no root"
    create_root_id(store, SYSTEM)
    (verdict,) = keys(store)
    before = json.loads(store.get(verdict))
    discard_result(store)
    assert check_store(store)[0].status == OK
    assert keys(store) == [verdict]
    # The rewritten object has the same members and a later time, and therefore another checksum.
    assert json.loads(store.get(verdict)).keys() == before.keys()

    for error, left in ((Unavailable, [verdict]), (BadRequest, [])):

        def down(key: str, data: bytes, error: type[SparklogError] = error) -> bool:
            raise error("no longer")

        monkeypatch.setattr(store, "create", down)
        assert check_store(store)[0].status == FAIL
        assert keys(store) == left
