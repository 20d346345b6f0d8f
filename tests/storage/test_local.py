"""The local store: the order of system calls, errors of the operating system, temporary files, and names."""

from __future__ import annotations

import errno
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.storage import LocalStore, local, local_path, open_store
from sparklog.storage.folder_store import TEMPORARY_PREFIX
from sparklog.storage.store import ObjectInfo


class Trace:
    """Records the system calls that determine durability, with the names of their files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[str] = []
        self.root = root
        self.names: dict[int, str] = {}
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "link", "unlink", "mkdir", "close")}

        def shown(path: Any) -> str:
            if str(path).startswith("/proc/"):
                return "UNNAMED"
            name = os.path.relpath(path, root)
            return os.path.join(os.path.dirname(name), "TMP") if os.path.basename(name).startswith("~") else name

        def traced_open(path: Any, flags: int, mode: int = 0o777) -> int:
            fd: int = real["open"](path, flags, mode)
            self.names[fd] = "UNNAMED" if flags & os.O_TMPFILE == os.O_TMPFILE else shown(path)
            return fd

        def on_fd(name: str) -> Any:
            def call(fd: int, *args: Any) -> Any:
                self.calls.append(f"{name} {self.names.get(fd, '?')}")
                return real[name](fd, *args)

            return call

        def on_path(name: str) -> Any:
            def call(*paths: Any, **options: Any) -> Any:
                self.calls.append(" ".join([name, *map(shown, paths)]))
                return real[name](*paths, **options)

            return call

        monkeypatch.setattr(os, "open", traced_open)
        for name in ("write", "fsync"):
            monkeypatch.setattr(os, name, on_fd(name))
        for name in ("link", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, on_path(name))


def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use temporary names, as on a file system that does not support unnamed files."""
    monkeypatch.setattr(local, "_UNNAMED_FILES", set[str]())


def test_a_create_is_durable_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_unnamed_files(monkeypatch)
    store = LocalStore(tmp_path / "root")
    trace = Trace(monkeypatch, tmp_path)
    assert store.create("t/_log/a", b"x")
    assert trace.calls == [
        "mkdir root",
        "fsync .",
        "mkdir root/t",
        "fsync root",
        "mkdir root/t/_log",
        "fsync root/t",
        "write root/t/_log/TMP",
        "fsync root/t/_log/TMP",
        "link root/t/_log/TMP root/t/_log/a",
        "fsync root/t/_log",
        # Once per process and directory, because another process may have created a directory and died before its
        # fsync.
        "fsync root/t",
        "fsync root",
        "fsync .",
        "unlink root/t/_log/TMP",
    ]
    trace.calls.clear()
    assert store.create("t/_log/b", b"x")
    assert trace.calls == [
        "write root/t/_log/TMP",
        "fsync root/t/_log/TMP",
        "link root/t/_log/TMP root/t/_log/b",
        "fsync root/t/_log",
        "unlink root/t/_log/TMP",
    ]
    trace.calls.clear()
    assert not store.create("t/_log/b", b"y")
    assert trace.calls == ["fsync root/t/_log"], "who is told 'exists' acts on that object: it must be durable"


def test_an_unnamed_file_is_synced_before_it_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "mount_and_type", lambda path: ("/", "ext4"))
    store = LocalStore(tmp_path / "root")
    store.create("t/a", b"x")
    trace = Trace(monkeypatch, tmp_path)
    assert store.create("t/b", b"x")
    assert trace.calls == ["write UNNAMED", "fsync UNNAMED", "link UNNAMED root/t/b", "fsync root/t"]
    assert store.get("t/b") == b"x"
    assert not store._create_file(str(tmp_path / "root/t/b"), "t/b", b"y", unnamed=True), "another process was faster"
    assert store.get("t/b") == b"x"
    assert sorted(os.listdir(tmp_path / "root/t")) == ["a", "b"]


@pytest.mark.parametrize("number", [errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_directory_without_unnamed_files_uses_temporary_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(local, "mount_and_type", lambda path: ("/", "ext4"))
    real = os.open

    def unsupported(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", unsupported)
    store = LocalStore(tmp_path)
    assert store.create("t/a", b"x")
    assert store.get("t/a") == b"x"
    assert os.listdir(tmp_path / "t") == ["a"]


def test_a_link_of_an_unnamed_file_that_fails_is_repeated_with_a_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "mount_and_type", lambda path: ("/", "ext4"))
    real = os.link

    def only_named(source: str, target: str, **options: Any) -> None:
        if source.startswith("/proc/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target, **options)

    monkeypatch.setattr(os, "link", only_named)
    store = LocalStore(tmp_path)
    assert store.create("a", b"x")
    assert store.get("a") == b"x"
    assert os.listdir(tmp_path) == ["a"]


def test_data_objects_are_durable_before_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.create("t/append/first", b"")
    writer = store.writer("t/append/a")
    writer.write(b"x")
    trace = Trace(monkeypatch, tmp_path)
    trace.names[writer._file.fileno()] = "TMP"  # type: ignore[attr-defined]
    writer.close()
    assert trace.calls == ["fsync TMP", "link t/append/TMP t/append/a", "fsync t/append", "unlink t/append/TMP"]


def test_not_durable_skips_fsync_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_unnamed_files(monkeypatch)
    store = LocalStore(tmp_path, durable=False)
    trace = Trace(monkeypatch, tmp_path)
    store.create("a", b"x")
    assert trace.calls == ["write TMP", "link TMP a", "unlink TMP"]


@pytest.mark.parametrize("mount_type", ["ext4", "nfs4"])
def test_a_lost_response_of_link_is_detected_by_the_link_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_type: str
) -> None:
    monkeypatch.setattr(local, "mount_and_type", lambda path: ("/", mount_type))
    real = os.link

    def lossy(source: str, target: str, **options: Any) -> None:
        real(source, target, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lossy)
    store = LocalStore(tmp_path)
    assert store.create("a", b"x") is True
    assert store.get("a") == b"x"


def test_a_mount_that_caches_link_counts_can_contain_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_stat, created = os.open, os.stat, set()

    def remembered_open(path: Any, *options: Any) -> int:
        created.add(path)
        return real_open(path, *options)

    def cached_stat(path: Any, **options: Any) -> os.stat_result:
        status = real_stat(path, **options)
        return os.stat_result([*status[:3], 1, *status[4:]]) if path in created else status

    monkeypatch.setattr(os, "open", remembered_open)
    monkeypatch.setattr(os, "stat", cached_stat)
    LocalStore(tmp_path).self_check()
    assert created


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_listing_contains_names_that_the_mounts_cache_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    store = LocalStore(tmp_path)
    for name in "abcd":
        store.create(f"t/{name}", b"x")
    real, denied = LocalStore._stat, {"t/b", "t/c"}

    def look(self: LocalStore, entry: os.DirEntry[str], key: str) -> ObjectInfo | None:
        if key in denied and is_deleted:
            for each in denied:
                (tmp_path / each).unlink(missing_ok=True)
        return None if key in denied and not is_deleted else real(self, entry, key)

    monkeypatch.setattr(LocalStore, "_stat", look)
    expected = [("t/a", 1), ("t/d", 1)] if is_deleted else [("t/a", 1), ("t/b", 0), ("t/c", 0), ("t/d", 1)]
    assert [(info.key, info.size) for info in store.list("t/")] == expected


@pytest.mark.parametrize(
    ("mount_type", "hides"), [("ext4", False), ("nfs4", True), ("fuse", True), ("fuse.sshfs", True), ("", True)]
)
def test_mounts_of_other_hosts_may_hide_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_type: str, hides: bool
) -> None:
    monkeypatch.setattr(local, "mount_and_type", lambda path: ("/", mount_type))
    assert LocalStore(tmp_path).hides_names == hides


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_store_without_hard_links_is_rejected_with_its_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_link(source: str, target: str, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    mount = next(folder for folder in (tmp_path, *tmp_path.parents) if os.path.ismount(folder))
    monkeypatch.setattr(os, "link", no_link)
    store = LocalStore(tmp_path)
    words = rf"on {re.escape(str(mount))} .*cannot hold a sparklog root: it does not support hard links"
    for action in (lambda: store.create("a", b"x"), store.self_check):
        with pytest.raises(BadRequest, match=words) as caught:
            action()
        assert "use another file system" in str(caught.value)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_store_without_directory_fsync_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.fsync

    def picky(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", picky)
    with pytest.raises(BadRequest, match="directories do not support fsync"):
        LocalStore(tmp_path).create("a", b"x")
    with pytest.raises(BadRequest, match="directories do not support fsync"):
        LocalStore(tmp_path).self_check()


@pytest.mark.parametrize(
    ("call", "number", "words"),
    [
        ("write", errno.ENOSPC, "cannot create a in .*: no space left on device: free some space"),
        ("write", errno.EDQUOT, "quota"),
        ("fsync", errno.EIO, "I/O error"),
        ("open", errno.EACCES, "permission denied"),
        ("open", errno.EROFS, "read-only"),
        ("open", errno.EMFILE, "too many open files"),
        ("open", errno.ENAMETOOLONG, "too long"),
        ("link", errno.ENOSPC, "no space left"),
        ("link", 199, "errno 199"),
    ],
)
def test_system_errors_are_unavailable_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, words: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(Unavailable, match=words) as caught:
        LocalStore(tmp_path).create("a", b"x")
    assert caught.value.is_denied == (number not in (errno.EIO, errno.EMFILE, 199))
    assert pickle.loads(pickle.dumps(caught.value)).is_denied == caught.value.is_denied
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_network", [False, True])
@pytest.mark.parametrize("call", ["link", "fsync of the directory"])
def test_full_disk_after_the_object_may_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_network: bool
) -> None:
    """If the error of link() may have been repeated by a network, or if only the name is not durable, the object may
    exist.
    """
    store = LocalStore(tmp_path)
    monkeypatch.setattr(LocalStore, "hides_names", is_network)
    real = os.fsync

    def full(*args: Any, **options: Any) -> None:
        if call == "link" or os.path.isdir(f"/proc/self/fd/{args[0]}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(args[0])

    monkeypatch.setattr(os, call.split()[0], full)
    with pytest.raises(Unavailable, match="no space left") as caught:
        store.create("a", b"x")
    assert caught.value.is_denied == (call == "link" and not is_network)
    assert os.listdir(tmp_path) == ([] if call == "link" else ["a"])


def test_full_disk_while_writing_data(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    store = LocalStore(tmp_path)
    writer = store.writer("a")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file.fileno())  # type: ignore[attr-defined]
    os.close(full)
    with pytest.raises(Unavailable, match=r"cannot write a .*no space left"):
        writer.write(b"x" * (4 << 20))
    with pytest.raises(Unavailable, match="cannot write a"):
        writer.close()
    writer.discard()
    assert os.listdir(tmp_path) == []


def test_failed_directory_fsync_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    real = os.fsync
    broken = [True]

    def flaky(fd: int) -> None:
        if broken[0] and os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "EIO")
        real(fd)

    monkeypatch.setattr(os, "fsync", flaky)
    with pytest.raises(Unavailable, match="make durable a"):
        store.create("a", b"x")
    with pytest.raises(Unavailable, match="make durable a"):
        store.create("a", b"x")
    broken[0] = False
    assert store.create("a", b"x") is False


def test_reading_a_forbidden_object_reports_the_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.create("a/b", b"x")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name, action in (
        ("open", lambda: store.get("a/b")),
        ("scandir", lambda: list(store.list("a/"))),
        ("lstat", lambda: store.stat("a/b")),
        ("lstat", lambda: store.create("a/b", b"x")),
        ("unlink", lambda: store.delete("a/b")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(Unavailable, match="permission denied"):
                action()


def test_temporary_files_are_not_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("t/a", b"x")
    writer = store.writer("t/b")
    writer.write(b"x")
    (tmp_path / "t" / ".nfs00000001").write_bytes(b"x")
    (tmp_path / "t" / "with space").write_bytes(b"x")
    assert len(list((tmp_path / "t").iterdir())) == 4
    assert [info.key for info in store.list("")] == ["t/a"]
    assert any(name.startswith(TEMPORARY_PREFIX) for name in os.listdir(tmp_path / "t"))
    writer.discard()


def test_only_regular_files_are_objects(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    store = LocalStore(root)
    store.create("t/file", b"x")
    LocalStore(outside).create("moved/file", b"y")
    LocalStore(outside).create("file", b"y")
    os.mkfifo(root / "t" / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "t" / "socket"))
    for name, target in (
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("link", "file"),
        ("above", root),
        ("self", "."),
        ("elsewhere", outside),
    ):
        (root / "t" / name).symlink_to(target)
    for key in ("t/fifo", "t/socket", "t/loop", "t/dangling", "t/link", "t/elsewhere"):
        assert store.stat(key) is None
        with pytest.raises(NotFound):
            store.get(key)
        with pytest.raises(
            BadRequest, match=rf"cannot create {key} in .*: the path exists, but is not a regular file; move it away"
        ):
            store.create(key, b"z")
    assert [info.key for info in store.list("")] == ["t/file"]
    assert list(store.list_folders("t/")) == []
    assert list(store.temporary_files("")) == []
    assert (outside / "file").read_bytes() == b"y"


def test_only_links_to_directories_outside_the_root_are_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    store = LocalStore(root)
    store.create("t/file", b"x")
    LocalStore(outside).create("file", b"y")
    for name, target in (
        ("moved", outside),
        ("alias", "t"),
        ("self", "."),
        ("above", tmp_path),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("file", outside / "file"),
    ):
        (root / name).symlink_to(target)
    assert list(store.list_folders("")) == ["moved", "t"]
    assert [info.key for info in store.list("")] == ["moved/file", "t/file"]
    assert store.create("moved/more", b"z")
    assert (outside / "more").read_bytes() == b"z"


def test_oversized_json_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for key in ("a.json", "a.arrow"):
        store.create(key, b"{}")
    os.truncate(tmp_path / "a.json", 64 << 30)
    with pytest.raises(Corrupt, match=r"expected JSON of at most 268435456 bytes, found 68719476736") as caught:
        store.get("a.json")
    assert caught.value.file == "a.json"
    assert store.get("a.json", 0, 4) == b"{}\0\0"
    os.truncate(tmp_path / "a.json", 2)
    assert store.get("a.json") == b"{}"


def test_a_file_in_place_of_a_directory_is_reported(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("a", b"x")
    with pytest.raises(BadRequest, match="file"):
        store.create("a/b", b"y")
    with pytest.raises(BadRequest, match="file"):
        store.create("a/b/c", b"y")


def test_concurrent_creates_survive_the_pruning_of_directories(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)
    failures: list[BaseException] = []

    def churn(name: str) -> None:
        try:
            for _ in range(500):
                assert store.create(f"a/b/{name}", b"x")
                store.delete(f"a/b/{name}")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=churn, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == []


def test_a_pickled_store_has_the_same_location(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)
    store.create("a", b"x")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") == b"x"
    assert (copy.location, copy.durable) == (str(tmp_path), False)


def test_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("x/../y").location == str(tmp_path / "y")
    assert local_path("file:/a/b") == local_path("file:///a/b/") == local_path("file://localhost/a/b") == "/a/b"
    assert local_path("FILE:///a%20b") == "/a b"
    assert local_path(tmp_path) == str(tmp_path)
    (tmp_path / "file").write_text("x")
    for location, words in (
        ("", "empty"),
        ("s4://bucket/x", "s4: locations are not supported"),
        ("file://host/x", "contains the host 'host'"),
        ("file:x", "not absolute"),
        (str(tmp_path / "file"), "is a file; expected a directory"),
    ):
        with pytest.raises(BadRequest, match=words):
            open_store(location)
    assert not (tmp_path / "y").exists(), "opening makes nothing"


def test_clock_of_a_root_that_does_not_exist_yet(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a" / "b")
    near = os.stat(tmp_path).st_mtime_ns // 1_000_000
    assert abs(store.now_ms() - near) < 60_000
    assert not (tmp_path / "a").exists()
    assert os.listdir(tmp_path) == []


def test_get_is_limited_to_the_size_of_the_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("a", b"x" * 100)
    # A length from damaged metadata must not be allocated.
    assert store.get("a", 10, 1 << 60) == b"x" * 90


def test_get_joins_partial_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.create("a", bytes(range(200)))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, start: real(fd, min(length, 7), start))
    assert store.get("a") == bytes(range(200))
    assert store.get("a", 50, 100) == bytes(range(50, 150))


def test_errors_are_sparklog_errors(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(NotFound) as caught:
        store.get("t/x")
    assert isinstance(caught.value, SparklogError)
    assert str(tmp_path) in str(caught.value)


def test_killing_a_writer_leaves_no_object(tmp_path: Path) -> None:
    """If a process is killed at any step of a create, the object is complete or missing."""
    program = """
import os, sys
from sparklog.storage import LocalStore
step = int(sys.argv[2])
calls = 0
def counted(real):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    return call
for name in ("open", "write", "fsync", "link", "unlink", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
LocalStore(sys.argv[1]).create("t/a", b"x" * 1000)
print("done")
"""
    seen = set()
    for step in range(1, 40):
        root = tmp_path / str(step)
        done = subprocess.run([sys.executable, "-c", program, str(root), str(step)], capture_output=True, check=False)
        store = LocalStore(root)
        state = store.get("t/a") if store.stat("t/a") else None
        assert state in (None, b"x" * 1000)
        seen.add(state)
        if done.returncode == 0:
            assert state is not None
            break
        if state is None:
            assert store.create("t/a", b"y"), "what a dead process left must not block the name"
            assert [info.key for info in store.list("")] == ["t/a"]
    else:
        pytest.fail("never ran to its end")
    assert seen == {None, b"x" * 1000}


@pytest.mark.parametrize("size", [100, 600_000])
def test_read_returns_the_same_bytes_as_get(tmp_path: Path, size: int) -> None:
    store = LocalStore(tmp_path)
    data = random.Random(1).randbytes(size)
    assert store.create("t/a", data)
    for start, length in ((0, size), (7, size - 20), (7, size), (size, 5), (size + 5, 5)):
        part = store.read("t/a", start, length)
        assert part.readonly
        assert part == store.get("t/a", start, length) == data[start : start + length]
    with pytest.raises(NotFound):
        store.read("t/b", 0, size)


def test_import_is_light() -> None:
    heavy = ("numpy", "pyarrow", "numba", "pandas", "pyspark")
    program = f"import sys; import sparklog.storage.probe; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
