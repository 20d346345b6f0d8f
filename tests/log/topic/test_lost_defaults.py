"""Lost root defaults: processes that need them fail, `verify` reports them, and the copy restores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import compact_root
from sparklog.errors import Corrupt, Unavailable
from sparklog.log.journal.names import DEFAULTS_FOLDER, commit_key, defaults_copy_key
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage import LocalStore
from sparklog.testing.world import DAY_MS, World
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.findings import MISSING
from sparklog.tools.verification.run import verify_root

ENTRY = "_root/defaults"


def kept_for_good(changes: int) -> World:
    """Return a root with old records that `retain` would delete without the last change of the defaults."""
    world = World()
    root = world.root()
    for number in range(changes):
        root.alter_defaults({"log.retention.ms": 1 + number})
    root.alter_defaults({"log.retention.ms": -1})
    topic = root.create_topic("archive")
    topic.append(pa.table({"value": ["a", "b"]}))
    world.now_ms += 30 * DAY_MS
    return world


def job(name: str, world: World) -> None:
    root, settings = world.root(), Settings(world.now_ms)
    if name == "retain":
        retain_root(root, settings)
    else:
        compact_root(root, settings, InProcess())


@pytest.mark.parametrize("name", ["retain", "compact"])
@pytest.mark.parametrize(("changes", "lost"), [(0, (0,)), (3, (3,)), (3, (0, 1, 2, 3)), (3, (1,)), (3, (0,))])
def test_jobs_do_not_run_with_lost_defaults_until_repair_restores_them(
    name: str, changes: int, lost: tuple[int, ...]
) -> None:
    world = kept_for_good(changes)
    entries = {number: world.store.get(commit_key(ENTRY, number)) for number in lost}
    for number in lost:
        world.store.delete(commit_key(ENTRY, number))
    with pytest.raises(Corrupt, match=r"(defaults of .* are lost|entr.* of the log .* missing).*sparklog repair"):
        job(name, world)
    assert world.topic("archive").count().records == 2
    named = {finding.file for finding in verify_root(world.store, env=world.env()).findings}
    assert named & {commit_key(ENTRY, number) for number in lost}
    report = repair_root(world.store, execute=True, env=world.env())
    assert report.repaired
    job(name, world)
    assert world.topic("archive").count().records == 2
    if changes in lost:
        assert world.store.get(commit_key(ENTRY, changes)) == entries[changes], "byte for byte"
    assert world.root().defaults().configs == {"log.retention.ms": "-1"}


def test_a_change_of_lost_defaults_is_rejected() -> None:
    world = kept_for_good(2)
    for number in range(3):
        world.store.delete(commit_key(ENTRY, number))
    with pytest.raises(Corrupt, match="run sparklog repair"):
        world.root().alter_defaults({"log.retention.ms": 7})


def test_a_writer_checks_for_lost_defaults_once() -> None:
    world = kept_for_good(0)
    world.store.delete(commit_key(ENTRY, 0))
    with pytest.raises(Corrupt, match="are lost"):
        world.topic("archive").append([{"value": "x"}])


def deny_listings_of_copies(verb: str, prefix: str) -> None:
    if verb == "list" and prefix.startswith(DEFAULTS_FOLDER):
        raise Unavailable(f"access is denied: a listing of {prefix}", is_denied=True)


def test_if_listing_copies_is_denied_writers_continue_and_jobs_fail() -> None:
    world = kept_for_good(0)

    root = world.root(HookedStore(world.store, before=deny_listings_of_copies))
    root.topic("archive").append([{"value": "x"}])
    assert root.alter_defaults({"log.retention.ms": 5}).configs == root.defaults().configs == {"log.retention.ms": "5"}
    for run in (
        lambda: retain_root(root, Settings(world.now_ms)),
        lambda: compact_root(root, Settings(0), InProcess()),
    ):
        with pytest.raises(Unavailable) as raised:
            run()
        assert raised.value.is_denied
    assert root.topic("archive").count().records == 3


@pytest.mark.parametrize("place", ["folder", "gone"])
def test_another_object_at_the_entrys_key(place: str, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.alter_defaults({"log.retention.ms": -1})
    root.create_topic("t")
    entry = tmp_path / commit_key(ENTRY, 0)
    entry.unlink()
    if place == "folder":
        entry.mkdir()
    with pytest.raises(Corrupt, match="are lost"):
        open_root(LocalStore(tmp_path), env=World().env()).defaults()
    assert not sparklog.verify(tmp_path).sound


def test_the_next_job_creates_a_missing_copy() -> None:
    world = kept_for_good(2)
    world.store.delete(defaults_copy_key(2))
    job("retain", world)
    assert [info.key for info in world.store.list(f"{DEFAULTS_FOLDER}/")] == [defaults_copy_key(2)]


def test_only_the_latest_copy_is_kept_and_both_are_verified() -> None:
    world = kept_for_good(3)
    assert [info.key for info in world.store.list(f"{DEFAULTS_FOLDER}/")] == [defaults_copy_key(3)]
    assert verify_root(world.store, env=world.env()).sound
    data = world.store.get(defaults_copy_key(3))
    world.store.replace(defaults_copy_key(3), data[:20] + bytes([data[20] ^ 1]) + data[21:])
    report = verify_root(world.store, env=world.env())
    assert [finding.file for finding in report.findings] == [defaults_copy_key(3)]
    assert repair_root(world.store, execute=True, env=world.env()).sound
    assert world.store.get(defaults_copy_key(3)) == data
    world.store.delete(commit_key(ENTRY, 3))
    (finding,) = verify_root(world.store, env=world.env()).findings
    assert (finding.kind, finding.file) == (MISSING, commit_key(ENTRY, 3))
    assert "repair" in finding.remedy


def test_a_crash_before_the_copy_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = kept_for_good(1)
    root = world.root()
    create: Callable[[str, bytes], bool] = world.store.create

    def failing(key: str, data: bytes) -> bool:
        if key.startswith(f"{DEFAULTS_FOLDER}/"):
            raise sparklog.Unavailable("the disk is full")
        return create(key, data)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "create", failing)
        root.alter_defaults({"log.retention.ms": 9})
    assert world.root().defaults().configs == {"log.retention.ms": "9"}
    assert verify_root(world.store, env=world.env()).sound
