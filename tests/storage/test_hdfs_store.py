"""HDFS as a store: the store tests with a namenode in memory, lost responses, and error messages."""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage import Store, hdfs_store, open_store
from sparklog.storage.hdfs_errors import FAILURES
from sparklog.storage.hdfs_store import HdfsStore
from sparklog.storage.retries import BUSY_BUDGET_S
from sparklog.testing.store_tests import StoreTests
from tests.support.fake_hdfs import FakeHdfs, remote
from tests.support.pauses import Pauses

URL = "hdfs://namenode:8020/data/log"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    monkeypatch.setattr(HdfsStore, "retry_policy", pauses.policy())
    return pauses


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch, pauses: Pauses) -> FakeHdfs:
    namenode = FakeHdfs()
    monkeypatch.setattr(hdfs_store, "_new_client", lambda url: namenode)
    return namenode


@pytest.fixture
def store(hdfs: FakeHdfs) -> Store:
    return open_store(URL)


class TestHdfsStore(StoreTests):
    @pytest.fixture
    def store(self, hdfs: FakeHdfs) -> Store:
        return open_store(URL)


class TestWholeHdfs(StoreTests):
    @pytest.fixture
    def store(self, hdfs: FakeHdfs) -> Store:
        return open_store("hdfs://nameservice")


def test_the_store_matches_its_url(store: Store) -> None:
    assert isinstance(store, HdfsStore)
    assert store.location == URL
    assert repr(store) == f"HdfsStore({URL!r})"
    assert store.needs_probe
    assert store.writable
    assert not open_store(f"{URL}/.snapshot/monday").writable
    store.create("a", b"x")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"x"


def test_written_data_is_on_disk_before_the_rename(hdfs: FakeHdfs, store: Store) -> None:
    writer = store.writer("t/append/x.slices")
    writer.write(b"x" * 3_000_000)
    writer.close()
    assert hdfs.calls == ["create", "write", "hsync", "close", "rename"]
    assert not [call for call in hdfs.calls if call == "delete"]
    store.create("a", b"x")
    assert hdfs.calls[5:] == ["get_file_info", "create", "write", "hsync", "close", "rename"]


LOST = OSError("RPC listener disconnected")
TWICE = FileNotFoundError("rename source /data/log/~1 is not found.\n\tat org.apache")
TAKEN = FileExistsError("rename destination /data/log/a already exists\n\tat org.apache")


@pytest.mark.parametrize("answer", [LOST, TWICE, TAKEN, remote("ipc.RetriableException", "NameNode still not started")])
def test_a_rename_with_a_lost_response_succeeds(hdfs: FakeHdfs, store: Store, answer: Exception) -> None:
    hdfs.after["rename"] = [answer, answer]
    assert store.create("a", b"ours")
    writer = store.writer("t/x")
    writer.write(b"data")
    writer.close()
    assert (store.get("a"), store.get("t/x")) == (b"ours", b"data")
    assert not list(store.temporary_files(""))


def test_a_rename_without_effect_leaves_no_object(hdfs: FakeHdfs, store: Store) -> None:
    hdfs.before["rename"] = [LOST]
    with pytest.raises(Unavailable, match="cannot create a in hdfs://namenode:8020/data/log: namenode:8020 does not"):
        store.create("a", b"ours")
    assert not hdfs.files
    assert store.create("a", b"again")


def test_a_name_that_another_writer_creates_concurrently_is_lost(hdfs: FakeHdfs, store: Store) -> None:
    # Between the lookup of the name and the rename.
    hdfs.before["get_file_info"] = [FileNotFoundError("/data/log/a")] * 2
    assert store.create("a", b"theirs")
    assert store.create("a", b"ours") is False
    assert store.get("a") == b"theirs"
    assert not list(store.temporary_files(""))


@pytest.mark.parametrize("theirs", [None, b"theirs"])
def test_a_create_fails_if_the_vacuum_deleted_its_temporary_file(
    hdfs: FakeHdfs, store: Store, theirs: bytes | None
) -> None:
    writer = store.writer("a")
    writer.write(b"ours")
    (temporary,) = store.temporary_files("")
    store.delete_temporary(temporary.key)
    if theirs is not None:
        store.create("a", theirs)
    with pytest.raises(Unavailable, match="temporary file was deleted"):
        writer.close()
    assert hdfs.files.get("/data/log/a", (None,))[0] == theirs


def test_effect_is_unknown_while_no_namenode_answers(hdfs: FakeHdfs, store: Store) -> None:
    hdfs.after["rename"] = [LOST]
    hdfs.before["delete"] = [LOST, LOST]
    with pytest.raises(Unavailable, match="does not respond"):
        store.create("a", b"ours")
    assert store.get("a") == b"ours"


SAFE_MODE = remote("hdfs.server.namenode.SafeModeException", "Cannot create file. Name node is in safe mode.")
STARTING = remote("ipc.RetriableException", "NameNode still not started")


@pytest.mark.parametrize("error", [SAFE_MODE, STARTING])
@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("read", lambda store: store.get("a")),
        ("read_range", lambda store: store.get("a")),
        ("get_file_info", lambda store: store.stat("a")),
        ("list_status", lambda store: list(store.list(""))),
        ("delete", lambda store: store.delete("a")),
        ("delete", lambda store: store.delete_many(["a"])),
        ("create", lambda store: store.now_ms()),
        ("create", lambda store: store.writer("t/x").close()),
        ("rename", lambda store: store.writer("t/x").close()),
    ],
)
def test_requests_to_a_namenode_in_safe_mode_are_retried(
    hdfs: FakeHdfs, store: Store, pauses: Pauses, call: str, use: Callable[[Store], object], error: Exception
) -> None:
    hdfs.files["/data/log/a"] = (b"x", 1)
    hdfs.before[call] = [error] * 6
    use(store)
    assert len(pauses.made) == 6
    hdfs.files["/data/log/a"] = (b"x", 1)
    hdfs.before[call] = [error] * 1000
    with pytest.raises(Unavailable):
        use(store)
    assert BUSY_BUDGET_S < pauses.seconds < 3 * BUSY_BUDGET_S


@pytest.mark.parametrize("call", ["create", "rename"])
def test_a_commit_does_not_wait_for_the_end_of_safe_mode(
    hdfs: FakeHdfs, store: Store, pauses: Pauses, call: str
) -> None:
    hdfs.before[call] = [SAFE_MODE]
    with pytest.raises(Unavailable, match="in safe mode"):
        store.create("a", b"x")
    assert not pauses.made
    assert not hdfs.files


def test_a_failed_write_is_not_repeated(hdfs: FakeHdfs, store: Store, pauses: Pauses) -> None:
    """A part of its bytes may have been written."""
    hdfs.before["write"] = [SAFE_MODE]
    writer = store.writer("t/x")
    with pytest.raises(Unavailable, match="in safe mode"):
        writer.write(bytes(2 << 20))
    writer.discard()
    assert not pauses.made
    assert not hdfs.files


def test_an_existing_temporary_name_is_not_reused(hdfs: FakeHdfs, store: Store) -> None:
    hdfs.after["create"] = [FileExistsError("/data/log/~1 for client 127.0.0.1 already exists")]
    assert store.create("a", b"x")
    assert len(list(store.temporary_files(""))) == 1
    hdfs.before["create"] = [FileExistsError("/data/log/~1")] * 5
    with pytest.raises(Unavailable, match="reports that each new name exists"):
        store.create("b", b"x")


def test_names_that_are_not_keys_are_skipped(hdfs: FakeHdfs, store: Store) -> None:
    store.create("x/ok", b"1")
    for name in ("x/~left", "x/a b", "a b/x"):
        hdfs.create(f"/data/log/{name}").close()
    assert [info.key for info in store.list("")] == ["x/ok"]
    assert list(store.list_folders("")) == ["x"]
    assert [info.key for info in store.temporary_files("")] == ["x/~left"]
    assert not list(store.temporary_files("", deep=False))
    store.delete_temporary("x/~left")
    assert not list(store.temporary_files(""))
    for key in ("x/ok", "~a b", "x/~"):
        with pytest.raises(BadRequest):
            store.delete_temporary(key)


def test_deleting_many_objects_deletes_empty_directories(hdfs: FakeHdfs, store: Store) -> None:
    keys = [f"t/{n % 3}/x/{n}" for n in range(30)]
    for key in [*keys, "t/0/stays"]:
        store.create(key, b"")
    store.delete_many([*keys, "t/none"])
    assert [info.key for info in store.list("")] == ["t/0/stays"]
    assert sorted(hdfs.folders) == ["/", "/data", "/data/log", "/data/log/t", "/data/log/t/0"]


def test_create_fails_if_a_directory_or_file_has_the_name(hdfs: FakeHdfs, store: Store) -> None:
    store.create("a/b", b"x")
    with pytest.raises(BadRequest, match="a directory has this name; move it away"):
        store.create("a", b"x")
    writer = store.writer("a")
    with pytest.raises(BadRequest, match="a directory has this name"):
        writer.close()
    for write in (lambda: store.create("a/b/c", b"x"), lambda: store.writer("a/b/c")):
        with pytest.raises(BadRequest, match="a part of the path is a file"):
            write()
    assert [info.key for info in store.list("")] == ["a/b"]
    assert list(store.obstacles("")) == ["a"]
    assert not list(store.temporary_files(""))


def test_the_clock_is_read_in_an_existing_directory(hdfs: FakeHdfs, store: Store) -> None:
    hdfs.folders["/data"] = 0
    assert store.now_ms() > 1_600_000_000_000
    assert sorted(hdfs.folders) == ["/", "/data"]
    assert not hdfs.files


DENIED = 'Permission denied: user=anna, access=WRITE, inode=\\"/data/log\\":root:supergroup:drwxr-xr-x'


@pytest.mark.parametrize(
    ("call", "error", "kind", "words"),
    [
        ("create", remote("security.AccessControlException", DENIED), Unavailable,
         'Permission denied: user=anna, access=WRITE, inode="/data/log":root:supergroup:drwxr-xr-x; see `hdfs'),
        ("create", remote("hdfs.server.namenode.SafeModeException", "Cannot create file"), Unavailable, "in safe mode"),
        ("create", remote("ipc.RetriableException", "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot"),
         Unavailable, "in safe mode"),
        ("create", remote("hdfs.protocol.NSQuotaExceededException", "The NameSpace quota"), Unavailable, "a quota is"),
        ("rename", remote("hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota"), Unavailable, "a quota is"),
        ("create", remote("hdfs.protocol.SnapshotAccessControlException", "Modification on a read-only snapshot"),
         Unavailable, "snapshots are read-only"),
        ("create", remote("ipc.StandbyException", "Operation category WRITE is not supported in state standby"),
         Unavailable, "use hdfs://<nameservice>/... and set HADOOP_CONF_DIR"),
        ("create", remote("HadoopIllegalArgumentException", "Invalid path name"), BadRequest, "Invalid path name"),
        ("create", remote("fs.SomeException", "x" * 5000), Unavailable, "HDFS returned SomeException: xxx"),
        ("create", OSError("Connection refused (os error 111)"), Unavailable,
         "namenode:8020 does not respond (Connection refused (os error 111)); check the host and the port"),
        ("create", RuntimeError("NoSASLMechanism"), Unavailable, "log in with `kinit`"),
        ("create", RuntimeError('GSSAPIError(GSS_S_FAILURE, 1, "No")'), Unavailable, "Kerberos authentication"),
        ("create", RuntimeError('OperationFailed("odd")'), Unavailable, "HDFS returned OperationFailed: odd"),
        ("write", RuntimeError('RPCError("java.io.IOException", "File /x could only be written to 0 of the 1'
                               ' minReplication nodes")'), Unavailable, "no datanode accepts its blocks"),
        ("close", RuntimeError('OperationFailed("Failed to complete file in time")'), Unavailable, "has reported its"),
        ("hsync", RuntimeError('OperationFailed("hsync is not supported for erasure-coded files")'), BadRequest,
         "cannot hold a sparklog root: its files are erasure-coded, so hsync does not work; set the directory"),
        ("create", RuntimeError("File encryption"), BadRequest,
         "cannot hold a sparklog root: hdfs-native does not support this: File encryption"),
    ],
)  # fmt: skip
def test_failed_create_is_one_line(
    hdfs: FakeHdfs, store: Store, call: str, error: Exception, kind: type[SparklogError], words: str
) -> None:
    hdfs.before[call] = [error]
    with pytest.raises(kind) as caught:
        store.create("t/a", b"x")
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "org.apache" not in message
    assert len(message) < 400
    assert not hdfs.files


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ("read", lambda store: store.get("a")),
        ("read_range", lambda store: store.get("a")),
        ("get_file_info", lambda store: store.stat("a")),
        ("list_status", lambda store: list(store.list(""))),
        ("list_status", lambda store: list(store.list_folders(""))),
        ("list_status", lambda store: list(store.temporary_files(""))),
        ("delete", lambda store: store.delete("a")),
        ("delete", lambda store: store.delete_many(["a"])),
        ("create", lambda store: store.now_ms()),
    ],
)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (remote("security.AccessControlException", DENIED), "Permission denied: user=anna"),
        (OSError("Connection refused (os error 111)"), "namenode:8020 does not respond"),
        (RuntimeError('DataTransferError("odd")'), "a datanode failed: see"),
    ],
)
def test_failed_request_is_one_line(
    hdfs: FakeHdfs, store: Store, call: str, read: Callable[[Store], object], error: Exception, words: str
) -> None:
    store.create("a", b"x")
    hdfs.before[call] = [error]
    with pytest.raises(Unavailable) as caught:
        read(store)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_object_deleted_while_it_is_read_is_missing(hdfs: FakeHdfs, store: Store) -> None:
    store.create("a", b"x")
    hdfs.before["read_range"] = [RuntimeError('BlocksNotFound("/data/log/a")')]
    hdfs.before["get_file_info"] = [FileNotFoundError("/data/log/a")]
    with pytest.raises(NotFound, match=r"no object a .*it has been deleted"):
        store.get("a")


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("hdfs://nn:9000/log", ["hdfs://nn:9000"]),
        ("hdfs://known/log", ["hdfs://known"]),
        ("hdfs://nn/log", ["hdfs://nn", "hdfs://nn:8020"]),
    ],
)
def test_host_without_port_is_a_nameservice_or_a_namenode(
    monkeypatch: pytest.MonkeyPatch, url: str, hosts: list[str]
) -> None:
    asked: list[str] = []

    def connect(host: str, settings: dict[str, str]) -> FakeHdfs:
        asked.append(host)
        # Requests to a wrong host fail soon. A nameservice may be switching its namenode.
        assert bool(settings) == (":" in host.removeprefix("hdfs://"))
        if host == "hdfs://nn":
            raise RuntimeError('InvalidArgument("No NameNode hosts found")')
        return FakeHdfs()

    monkeypatch.setattr("hdfs_native.Client", connect)
    assert open_store(url).stat("a") is None
    assert asked == hosts


@pytest.mark.parametrize("host", ["nn:port", "nn:99999", "n n:8020"])
def test_a_url_without_a_host_is_rejected(host: str) -> None:
    with pytest.raises(BadRequest, match="has no valid namenode; expected a URL such as hdfs://namenode:8020/log"):
        open_store(f"hdfs://{host}/log").stat("a")


def test_invalid_settings_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(host: str, settings: dict[str, str]) -> FakeHdfs:
        raise RuntimeError("XmlParseError(UnexpectedEndTag)")

    monkeypatch.setattr("hdfs_native.Client", connect)
    with pytest.raises(Unavailable, match=r"hdfs-site\.xml in HADOOP_CONF_DIR is not valid XML"):
        open_store(URL).stat("a")


def test_without_hdfs_native_the_error_reports_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sparklog.storage.hdfs_store")
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(BadRequest, match=r'hdfs:// locations require hdfs-native: python -m pip install "hdfs-native'):
        open_store(URL)


def _in_child(answers: object) -> None:
    try:
        open_store(URL).stat("a")
        answers.put("an answer")  # type: ignore[attr-defined]
    except SparklogError as error:
        answers.put(str(error))  # type: ignore[attr-defined]


def test_child_of_a_process_that_used_hdfs_does_not_hang(hdfs: FakeHdfs, store: Store) -> None:
    store.create("a", b"x")
    context = get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(answers,))
    child.start()
    assert "forked from a process that had used hdfs_native" in answers.get(timeout=300)
    child.join()
    assert os.getpid() != child.pid


class Unreliable(FakeHdfs):
    """Loses requests and responses, repeats a request like the client, or delays it. Other writers run in between."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.faults = True
        self.others: list[Callable[[], object]] = []
        self.late: list[Callable[[], object]] = []

    def _run(self, name: str, call: Any) -> Any:
        if not self.faults or name == "write":  # which is sent to datanodes
            return super()._run(name, call)
        if self.late and self.random.random() < 0.3:
            with suppress(*FAILURES):
                self.late.pop()()
        if self.others and self.random.random() < 0.1:
            self.others.pop()()
        fate = self.random.random()
        if fate < 0.05:
            raise LOST
        if fate < 0.08:
            self.late.append(lambda: FakeHdfs._run(self, name, call))
            raise LOST
        answer = super()._run(name, call)
        if fate < 0.12:
            raise LOST
        return super()._run(name, call) if fate < 0.2 else answer


def test_exactly_one_creator_wins_regardless_of_lost_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = Counter[str]()
    for seed in range(500):
        namenode = Unreliable(seed)
        monkeypatch.setattr(hdfs_store, "_new_client", lambda url, namenode=namenode: namenode)
        results: dict[bytes, str] = {}

        def create(body: bytes, results: dict[bytes, str] = results) -> None:
            store = open_store(URL)
            try:
                results[body] = "won" if store.create("t/a", body) else "lost"
            except Unavailable:
                results[body] = "unknown"

        def vacuum() -> None:
            store = open_store(URL)
            with suppress(Unavailable):
                for info in list(store.temporary_files("")):
                    store.delete_temporary(info.key)

        namenode.others = [lambda: create(b"second"), vacuum, lambda: create(b"third")]
        create(b"first")
        namenode.faults = False
        for late in namenode.late:
            with suppress(*FAILURES):
                late()
        winner = namenode.files.get("/data/log/t/a", (b"",))[0]
        for body, result in results.items():
            assert result != "won" or body == winner, seed
            assert result != "lost" or winner not in (b"", body), seed
            outcomes[result] += 1
    assert min(outcomes[each] for each in ("won", "lost", "unknown")) >= 5, outcomes
