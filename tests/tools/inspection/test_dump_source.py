"""The files of the given paths: their order, their printed names, and rejected paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import BadRequest, NotFound
from sparklog.storage import open_store
from sparklog.tools.inspection.dump_source import DumpFile, check_name, find, plain_text

FIRST, SECOND = f"{0:020}", f"{30:020}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a partition directory with two segments and the other files of a broker, next to a second directory."""
    place = tmp_path / "orders-0"
    place.mkdir()
    for stem in (SECOND, FIRST):
        for suffix in ("timeindex", "snapshot", "log", "txnindex", "index"):
            (place / f"{stem}.{suffix}").write_bytes(stem.encode())
    (place / "leader-epoch-checkpoint").write_text("0\n0\n")
    (place / "partition.metadata").write_text("version: 0\n")
    (place / "notes.txt").write_text("of nobody")
    (tmp_path / "orders-1").mkdir()
    (tmp_path / "orders-1" / f"{FIRST}.log").write_bytes(b"")
    return place


def names(paths: list[str], root: str | None = None) -> list[str]:
    return [source.name for source in find(paths, root)]


def test_files_of_a_directory_are_sorted_by_base_offset_and_type(folder: Path) -> None:
    kinds = ("log", "index", "timeindex", "txnindex", "snapshot")
    expected = [f"{stem}.{kind}" for stem in (FIRST, SECOND) for kind in kinds]
    assert names([str(folder)]) == [*expected, "leader-epoch-checkpoint", "partition.metadata"]
    assert names([f"{folder}/"]) == names([str(folder)])


def test_subdirectories_are_listed_in_order(folder: Path) -> None:
    found = find([str(folder.parent)])
    assert [source.key.split("/")[0] for source in found] == ["orders-0"] * 12 + ["orders-1"]
    assert found[-1].shown == f"{folder.parent}/orders-1/{FIRST}.log"


def test_paths_keep_the_order_of_the_arguments(folder: Path) -> None:
    paths = [str(folder / f"{SECOND}.log"), str(folder / f"{FIRST}.log"), str(folder.parent / "orders-1")]
    assert [source.shown for source in find(paths)] == [*paths[:2], f"{paths[2]}/{FIRST}.log"]


def test_path_is_shown_as_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (source,) = find([f"{FIRST}.log"])
    assert (source.shown, source.absolute) == (f"{FIRST}.log", str(folder / f"{FIRST}.log"))
    monkeypatch.chdir(folder.parent)
    (source,) = find([f"orders-0/{FIRST}.log"])
    assert source.shown == f"orders-0/{FIRST}.log"


def test_paths_relative_to_a_root(folder: Path) -> None:
    root = str(folder.parent)
    (source,) = find([f"/orders-0/{FIRST}.index"], root)
    assert (source.key, source.shown) == (f"orders-0/{FIRST}.index", f"{root}/orders-0/{FIRST}.index")
    assert len(find(["orders-0"], root)) == 12
    assert len(find([""], f"{root}/")) == 13
    with pytest.raises(NotFound, match=r"orders-7 does not exist"):
        find(["orders-7"], root)


def test_missing_files_and_empty_directories_are_rejected(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("")
    for path in (folder / "none.log", tmp_path / "none" / "x.log"):
        with pytest.raises(NotFound, match=f"{path} does not exist"):
            find([str(path)])
    for name in ("empty", "text"):
        with pytest.raises(NotFound, match=f"{name} has no segments, indexes or commits"):
            find([str(tmp_path / name)])
    with pytest.raises(BadRequest, match="dbfs: locations are not supported"):
        find(["dbfs:/mnt/log"])


@pytest.mark.parametrize("name", ["x.txt", "log", "index", "notes", ".metadata", "checkpoint-of-mine"])
def test_unknown_file_names_are_rejected(folder: Path, name: str) -> None:
    source = DumpFile(open_store(folder), name, name, name)
    with pytest.raises(
        BadRequest, match=f"{name} cannot be dumped; expected a file with one of the suffixes log, index"
    ):
        check_name(source)


KNOWN = (f"{FIRST}.log", "7.index", f"{FIRST}.json", "x.arrow", "recovery-point-offset-checkpoint", "meta.properties")


@pytest.mark.parametrize("name", KNOWN)
def test_known_file_names(folder: Path, name: str) -> None:
    source = DumpFile(open_store(folder), name, name, name)
    check_name(source)
    assert source.suffix in name


@pytest.mark.parametrize("stem", ["", "x", "-1", "1x", "٣"])
def test_segment_name_must_be_a_base_offset(folder: Path, stem: str) -> None:
    source = DumpFile(open_store(folder), f"{stem}.log", f"{stem}.log", "")
    with pytest.raises(BadRequest, match="its name does not start with a base offset of 20 digits"):
        check_name(source)


def test_dump_file_reads_ranges_and_finds_related_files(folder: Path) -> None:
    (log,) = find([str(folder / f"{SECOND}.log")])
    assert (log.stem, log.suffix, log.base_offset, log.size()) == (SECOND, "log", 30, 20)
    assert (log.read(), log.read(18), log.read(17, 2), log.read(19, 9)) == (SECOND.encode(), b"30", b"03", b"0")
    index = log.with_suffix("index")
    assert (index.key, index.shown) == (f"{SECOND}.index", str(folder / f"{SECOND}.index"))
    assert index.absolute == log.absolute.removesuffix("log") + "index"
    (folder / f"{SECOND}.index").unlink()
    with pytest.raises(NotFound, match=f"file {index.shown} does not exist"):
        index.size()


def test_suffix_of_a_file_name_with_two_dots(folder: Path) -> None:
    """A broker adds .deleted to the names of files that it is about to delete."""
    deleted = DumpFile(open_store(folder), f"{FIRST}.log.deleted", "x", "x")
    assert (deleted.stem, deleted.suffix) == (FIRST, "deleted")


def test_plain_text_formats_members() -> None:
    assert plain_text({"offset": 3, "name": "x", "none": None}) == "offset: 3 name: x none: None"
    assert plain_text({}) == ""
