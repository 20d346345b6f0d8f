"""`sparklog backup` and `sparklog restore`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import sparklog as library
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import open_root
from sparklog.storage import LocalStore
from tests.cli.conftest import Sparklog

LinesFile = Callable[[str], Path]


@pytest.fixture
def filled(sparklog: Sparklog, lines_file: LinesFile, root: Path) -> Path:
    sparklog("topics", "create", "orders", "-p", 2)
    sparklog("produce", "orders", "-p", 0, "--file", lines_file("a\nb\n"))
    Groups(library.open(root)).group("billing").join("one").commit({"orders": {0: 1}})
    return root


def consumed(sparklog: Sparklog, root: Path, topic: str = "orders") -> list[str]:
    return sparklog("consume", topic, "--from-beginning", "--root", root).lines


def test_backup_list_and_restore(sparklog: Sparklog, filled: Path, lines_file: LinesFile, tmp_path: Path) -> None:
    repository, new = tmp_path / "backups", tmp_path / "new"
    assert sparklog("backup", "--to", repository, "--dry-run").out.startswith("Would copy 1 file (")
    assert not repository.exists()
    assert sparklog("backup", "--to", repository).out.startswith("Backup 1: 1 topic, 1 group, ")
    sparklog("produce", "orders", "-p", 0, "--file", lines_file("c\n"))
    shown = json.loads(sparklog("backup", "--to", repository, "--json").out)
    assert (shown["number"], shown["topics"][0]["version"], shown["pruned"]) == (2, 4, None)
    heading, first, second = sparklog("backup", "--to", repository, "--list").lines
    assert heading.split() == ["BACKUP", "TAKEN", "ALL-TIMES-SINCE", "TOPICS", "GROUPS", "BYTES", "COPIED"]
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    taken = json.loads(sparklog("backup", "--to", repository, "--list", "--json").out)
    assert [item["number"] for item in taken] == [1, 2]
    assert "Would restore 1 topic" in sparklog("restore", repository, "--to", new, "--dry-run").out
    assert not new.exists()
    assert (
        sparklog("restore", repository, "--to", new).lines[0].startswith("Restored 1 topic and 1 group from backup 2")
    )
    assert consumed(sparklog, new) == ["a", "b", "c"]
    assert "every byte accounted for" in sparklog("verify", "--root", new).out
    assert Groups(library.open(new)).group("billing").committed()["orders", 0].offset == 1
    older = tmp_path / "older"
    sparklog("restore", repository, "--to", older, "--backup", 1, "--rename", "orders=old")
    assert consumed(sparklog, older, "old") == ["a", "b"]
    at = tmp_path / "at"
    assert (
        json.loads(sparklog("restore", repository, "--to", at, "-t", "orders", "--as-of", 1, "--json").out)["backup"]
        == 1
    )
    assert consumed(sparklog, at) == ["a", "b"]
    live = tmp_path / "live"
    assert "from a root" in sparklog("restore", filled, "--to", live).out
    assert consumed(sparklog, live) == ["a", "b", "c"]


@pytest.mark.usefixtures("records_in_files")
def test_backup_creates_links_and_prunes_old_backups(sparklog: Sparklog, filled: Path, tmp_path: Path) -> None:
    repository, new = tmp_path / "backups", tmp_path / "new"
    sparklog("backup", "--to", repository, "--link")
    files = list((repository / "orders" / "append").iterdir())
    assert files
    assert all(file.stat().st_nlink == 2 for file in files)
    assert "Deleted backups: 1;" in sparklog("backup", "--to", repository, "--keep", 1).out
    assert (
        "Would delete backups: none"
        in sparklog("backup", "--to", repository, "--prune", "--keep-days", 1, "--dry-run").out
    )
    sparklog("restore", repository, "--to", new, "--link")
    assert consumed(sparklog, new) == ["a", "b"]


def test_backup_rejects_kafka_directories_and_expands_the_home_directory(
    sparklog: Sparklog, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kafka" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").touch()
    for path in (folder, folder.parent):
        outcome = sparklog("backup", "--root", path, "--to", tmp_path / "new", code=1)
        assert "expected a sparklog root: convert it with `sparklog import`" in outcome.err
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    sparklog("backup", "--to", "~/backups")
    sparklog("restore", "~/backups", "--to", "~/again")
    assert consumed(sparklog, tmp_path / "again") == ["a", "b"]


def test_unrelated_damage_is_skipped_and_reported(sparklog: Sparklog, filled: Path, tmp_path: Path) -> None:
    repository, new = tmp_path / "backups", tmp_path / "new"
    sparklog("topics", "create", "quiet")
    entry = max((filled / "_groups" / "billing" / "_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes().replace(b'"generation"', b'"generatiom"'))
    strict = sparklog("backup", "--to", repository, code=1)
    assert f"_groups/billing/_log/{entry.name}" in strict.err
    assert strict.err.count("\n") == 1
    assert (
        "the journal cannot be skipped, because it contains topic 'orders'"
        in sparklog("backup", "--to", repository, "-t", "orders", code=1).err
    )
    for arguments in (
        ("backup", "--to", repository, "-t", "quiet", "--dry-run"),
        ("backup", "--to", repository, "-t", "quiet"),
        ("restore", repository, "--to", new),
        ("restore", filled, "--to", tmp_path / "live", "-t", "quiet"),
    ):
        outcome = sparklog(*arguments, code=1)
        assert "1 topic" in outcome.out
        assert outcome.err.startswith(
            "sparklog: group 'billing' was skipped, because it does not concern a selected topic: "
        )
        assert entry.name in outcome.err
        assert outcome.err.count("\n") == 1
    assert sparklog("topics", "list", "--root", new).lines == ["quiet"]
    shown = json.loads(sparklog("backup", "--to", repository, "--list", "--json").out)[0]
    assert (shown["only"], [item["id"] for item in shown["leftOut"]]) == (["quiet"], ["billing"])
    assert sparklog("backup", "--to", repository, "--list").lines[1].split()[-5:-3] == ["only", "1"]


def test_group_offsets_beyond_the_version_are_reset_to_the_end(
    sparklog: Sparklog, filled: Path, lines_file: LinesFile, tmp_path: Path
) -> None:
    version = library.open(filled).topic("orders").log.state().version
    behind = replace(SYSTEM, wall_ms=lambda: SYSTEM.wall_ms() - 60_000)
    root = open_root(LocalStore(filled), env=behind)
    sparklog("produce", "orders", "-p", 0, "--file", lines_file("c\nd\n"))
    Groups(root).group("late").join("one").commit({"orders": {0: 4}})
    for source in (filled, tmp_path / "backups"):
        if source != filled:
            sparklog("backup", "--to", source)
        new = tmp_path / f"new-{source.name}"
        said = sparklog("restore", source, "--to", new, "-t", "orders", "--as-of", version).lines
        assert "Group late is set to 2, the end of orders-0 in this version; its previous offset was 4." in said
        assert Groups(library.open(new)).group("late").committed()["orders", 0].offset == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("backup", "--to", "{root}"), 1, "is a root"),
        (
            ("backup", "--to", "{new}", "--root", "{root}/orders"),
            1,
            "is a topic directory, expected a root: specify --root {root}, and",
        ),
        (("backup", "--to", "{root}/orders/place"), 1, "is inside the root {root}, and roots cannot be nested"),
        (("restore", "{root}", "--to", "{repository}/new"), 1, "is inside the backup repository {repository}"),
        (("topics", "create", "t", "--root", "{repository}/new"), 1, "is a backup repository, which is read-only"),
        (("backup", "--to", "{new}", "-t", "ordres"), 1, "did you mean 'orders'"),
        (("backup", "--to", "{new}", "--list"), 1, "is not a backup repository"),
        (("backup", "--to", "{new}", "--prune", "--keep", "1"), 1, "is not a backup repository"),
        (("backup", "--to", "{repository}", "--prune"), 2, "--prune requires --keep or --keep-days"),
        (("backup", "--to", "{repository}", "--keep", "0"), 2, "--keep"),
        (("backup",), 2, "--to"),
        (("restore", "{new}", "--to", "{new}2"), 1, "neither a backup repository"),
        (("restore", "{repository}", "--to", "{root}"), 1, "is not empty"),
        (("restore", "{repository}", "--to", "{new}", "--as-of", "3"), 1, "a version requires exactly one topic"),
        (("restore", "{repository}", "--to", "{new}", "--as-of", "tuesday"), 2, "--as-of"),
        (("restore", "{repository}", "--to", "{new}", "--as-of", "2001-01-01"), 1, "no topic existed at 2001-01-01"),
        (("restore", "{repository}", "--to", "{new}", "--as-of", "2999-01-01"), 1, "the latest backup started at"),
        (
            ("restore", "{repository}", "--to", "{new}", "--as-of", "9" * 18),
            1,
            f", before {'9' * 18}; make another backup first",
        ),
        (("restore", "{repository}", "--to", "{new}", "--backup", "7"), 1, "backup 7 does not exist"),
        (("restore", "{repository}", "--to", "{new}", "-t", "ordres"), 1, "did you mean 'orders'"),
        (("restore", "{repository}", "--to", "{new}", "--rename", "orders"), 2, "OLD=NEW"),
        (("restore", "{repository}", "--to", "{new}", "--rename", "orders=a/b"), 1, "a/b"),
    ],
)
def test_invalid_input_is_a_one_line_error_and_changes_nothing(
    sparklog: Sparklog, filled: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    repository, new = tmp_path / "backups", tmp_path / "new"
    sparklog("backup", "--to", repository)
    before = {
        path: path.stat().st_mtime_ns for folder in (repository, filled) for path in folder.rglob("*") if path.is_file()
    }
    outcome = sparklog(*(text.format(root=filled, repository=repository, new=new) for text in arguments), code=code)
    assert says.format(root=filled, repository=repository, new=new) in outcome.err
    assert outcome.err.count("\n") == 1
    after = {
        path: path.stat().st_mtime_ns for folder in (repository, filled) for path in folder.rglob("*") if path.is_file()
    }
    assert {path: time for path, time in after.items() if "running" not in path.parts} == before
