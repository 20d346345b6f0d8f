"""Roots without write permission can be backed up, restored from and read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as package
from sparklog.storage import LocalStore
from sparklog.tools.backup.backing_up import back_up, plan_backup
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.tools.verification.run import verify_root
from tests.support.read_only import read_only
from tests.tools.backup.backup_world import RestoringWorld, contents

NOBODY = 65_534
WITHOUT_LEASES = "is read-only for this user and is copied without leases"
COMMANDS = (
    ("backup", "--root", "{root}", "--to", "{to}/backup"),
    ("backup", "--root", "{root}", "--to", "{to}/backup", "--dry-run"),
    ("restore", "{root}", "--to", "{to}/restored"),
    ("restore", "{to}/backup", "--to", "{to}/restored-again"),
    ("verify", "--root", "{root}"),
    ("report", "--root", "{root}", "--html", "{to}/page.html"),
    ("metrics", "--root", "{root}"),
    ("consume", "t", "--root", "{root}", "--max-messages", "1"),
)


@pytest.fixture
def world() -> RestoringWorld:
    made = RestoringWorld()
    for name in ("a", "z"):
        made.fill(name, 2, {})
    return made


def test_backup_of_a_read_only_root(world: RestoringWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The backup is complete, one line warns, and the source has no new objects."""
    before = [info.key for info in world.store.list("")]
    source, target = world.root(read_only(world.store)), world.another("target")
    assert plan_backup(source, target).files > 0
    made = back_up(source, target)
    assert [WITHOUT_LEASES in each.getMessage() for each in caplog.records].count(True) == 1
    assert [info.key for info in world.store.list("")] == before
    assert {topic.topic for topic in made.topics} == {"a", "z"}
    restored = world.another("restored")
    restore(target, restored, env=world.env())
    assert contents(world.root(restored)) == contents(world.root())


def test_restore_from_a_read_only_root(world: RestoringWorld, caplog: pytest.LogCaptureFixture) -> None:
    restored = world.another("restored")
    restore(read_only(world.store), restored, RestorePoint(), env=world.env())
    assert contents(world.root(restored)) == contents(world.root())
    assert [WITHOUT_LEASES in each.getMessage() for each in caplog.records].count(True) == 1
    assert verify_root(read_only(restored), env=world.env()).sound


def test_writable_root_is_leased(world: RestoringWorld, caplog: pytest.LogCaptureFixture) -> None:
    versions = world.topic("a").log.state().version
    back_up(world.root(), world.another("target"))
    assert world.topic("a").log.state().version > versions
    assert WITHOUT_LEASES not in caplog.text


def test_missing_directory_is_writable(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).writable
    assert LocalStore(tmp_path / "new").writable


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root to be another user")
def test_root_of_another_user(tmp_path: Path) -> None:
    """Run as a user who may read all files and write none."""
    root, to = tmp_path / "log", tmp_path / "to"
    topic = package.open(root, create=True).create_topic("t")
    topic.append(pa.table({"value": ["a", "b"]}))
    to.mkdir()
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    # The user root without the capability to override file permissions.
    powerless = (
        "setpriv",
        "--bounding-set",
        "-dac_override,-dac_read_search,-fowner",
        sys.executable,
        "-m",
        "sparklog",
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        given = [word.format(root=root, to=to) for word in words]
        return subprocess.run([*powerless, *given], env=environ, capture_output=True, text=True, check=False)

    for words in COMMANDS:
        done = run(*words)
        assert done.returncode == 0, (words, done.stderr)
        leased = words[0] == "restore" and "backup" in words[1]
        warned = words[0] in ("backup", "restore") and "--dry-run" not in words and not leased
        assert done.stderr.count(WITHOUT_LEASES) == int(warned), (words, done.stderr)
    assert package.open(to / "restored").topic("t").scan().to_table()["value"].to_pylist() == [b"a", b"b"]
    doctor = run("doctor", "--root", "{root}")
    assert f"this user can read {root} but cannot write to it" in doctor.stdout
    assert f"run as its owner, or sudo chown -R {os.getuid()} {root}" in doctor.stdout
