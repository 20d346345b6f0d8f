"""A missing number below existing numbers is an error for readers and writers, once no cache can be hiding it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt, Unavailable
from sparklog.groups.group_state import GROUPS
from sparklog.groups.lag import Groups
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.entry_log import collect_entries, collect_log
from sparklog.log.journal.names import checkpoint_prefix, commit_key, transactions_prefix
from sparklog.log.topic.root import Root
from sparklog.maintenance.leases import JobLease, read_job_leases
from sparklog.storage.store import ObjectInfo, Store
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from sparklog.transactions.producer import transactional
from tests.log.protocol import collect, other, publish, setup
from tests.support.name_caching_store import NameCachingStore
from tests.support.small_limits import small_limits

FAR = 16


def append(root: Root) -> None:
    root.topic("t").append([{"value": "x"}])


def commit_offsets(root: Root) -> None:
    Groups(root).group("g").alter({"t": {0: Groups(root).group("g").state().number + 1}})


def transact(root: Root) -> None:
    with transactional(root, "id").begin() as transaction:
        transaction.append("t", pa.table({"value": ["x"]}))


def lease(root: Root) -> None:
    held = JobLease(root, "retain")
    held.acquire()
    held.release()


def set_default(root: Root) -> None:
    number = root.defaults().number
    root.alter_defaults({"log.retention.ms": str(1_000_000 + number)})


JOURNALS: dict[str, tuple[str, Callable[[Root], None]]] = {
    "commits": ("t", append),
    "group": ("_groups/g", commit_offsets),
    "decisions": (transactions_prefix("id"), transact),
    "leases": ("_maintenance/retain", lease),
    "defaults": ("_root/defaults", set_default),
}


@pytest.fixture(params=[1, FAR], ids=["disk", "bucket"])
def world(request: pytest.FixtureRequest) -> World:
    made = World()
    made.store.parallel_reads = request.param  # type: ignore[misc]
    made.root(made.store).create_topic("t")
    return made


def written(world: World, journal: str, times: int = 9) -> tuple[str, Callable[[Root], None]]:
    prefix, write = JOURNALS[journal]
    root = world.root(world.store)
    for _ in range(times):
        write(root)
    return prefix, write


def numbers(store: Store, prefix: str) -> list[str]:
    return [info.key for info in store.list(f"{prefix}/_log/0")]


@pytest.mark.parametrize("lost", [(0,), (3,), (3, 4), (2, 5)])
@pytest.mark.parametrize("journal", JOURNALS)
def test_opening_a_journal_fails_if_an_entry_is_lost(world: World, journal: str, lost: tuple[int, ...]) -> None:
    prefix, write = written(world, journal)
    saved = {number: world.store.get(commit_key(prefix, number)) for number in lost}
    for number in lost:
        world.store.delete(commit_key(prefix, number))
    left, begun = numbers(world.store, prefix), world.now_ms
    with pytest.raises(Corrupt, match=f"entr.* {lost[0]} .*missing, although .* exist, .*sparklog repair") as raised:
        write(world.root(world.store))
    assert raised.value.file == commit_key(prefix, lost[0])
    assert world.now_ms - begun > 90_000, "a cache may hide a name for so long"
    assert numbers(world.store, prefix) == left, "nothing was written"
    for number, data in saved.items():
        world.store.create(commit_key(prefix, number), data)
    write(world.root(world.store))
    assert len(numbers(world.store, prefix)) > len(left) + len(lost)


def test_a_second_opening_does_not_repeat_the_wait_for_a_gap(world: World) -> None:
    written(world, "commits")
    world.store.delete(commit_key("t", 4))
    root = world.root(world.store)
    for most_ms in (200_000, 5_000):
        begun = world.now_ms
        with pytest.raises(Corrupt, match="entry 4 of the log is missing"):
            root.topic("t")
        assert world.now_ms - begun < most_ms


def test_waiting_for_a_gap_reads_only_the_missing_number(world: World) -> None:
    """Opening a journal takes about 20 requests in a bucket, which must not be repeated for each attempt."""
    written(world, "commits")
    world.store.delete(commit_key("t", 4))
    counting = CountingStore(world.store)
    root = world.root(counting)
    counting.reset()
    with pytest.raises(Corrupt, match="entry 4 of the log is missing"):
        root.topic("t")
    assert sum(counting.counts.values()) < 300


def test_reads_wait_for_a_name_that_a_cache_hides(world: World) -> None:
    written(world, "commits")
    hidden_until = world.now_ms + 60_000

    def hide(call: Call) -> Fault | None:
        is_hidden = world.now_ms < hidden_until and call.verb in ("get", "stat") and call.key == commit_key("t", 4)
        return Fault(FaultKind.ABSENT) if is_hidden else None

    store = FaultyStore(world.store, hide, world.sleep)
    assert world.root(store).topic("t").log.state().version == 9
    hidden_until = world.now_ms + 1_000_000
    if world.store.parallel_reads == FAR:
        # Later commits contain a copy of its document.
        assert world.root(store).topic("t").log.state().version == 9
        return
    with pytest.raises(Unavailable, match="is listed but cannot be read"):
        world.root(store).topic("t")


def test_a_follower_that_reads_several_commits_detects_the_gap(world: World) -> None:
    written(world, "commits", 3)
    follower = world.root(world.store).topic("t")
    written(world, "commits", 6)
    world.store.delete(commit_key("t", 7))
    with pytest.raises(Corrupt, match="entry 7 of the log is missing, although entries 8 to 9 exist"):
        follower.log.refresh()


def test_a_follower_lists_later_commits_only_after_a_pause(world: World) -> None:
    hidden: set[str] = set()

    def hide(call: Call) -> Fault | None:
        return Fault(FaultKind.ABSENT) if call.verb == "get" and call.key in hidden else None

    counting = CountingStore(FaultyStore(world.store, hide, world.sleep))
    follower = world.root(counting).topic("t").log
    counting.reset()
    for _ in range(200):
        world.now_ms += 60_000
        follower.refresh()
    assert counting.counts["list"] == 0
    # A cache hides the next commit, which a listing contains, so there is no gap.
    written(world, "commits", 2)
    hidden.add(commit_key("t", 1))
    world.now_ms += 301_000
    begun = world.now_ms
    assert (follower.refresh().number, world.now_ms, counting.counts["list"]) == (0, begun, 1)
    hidden.clear()
    assert follower.refresh().number == 2
    written(world, "commits", 3)
    for number in (3, 4):
        world.store.delete(commit_key("t", number))
    world.now_ms += 301_000
    with pytest.raises(Corrupt, match="entries 3 to 4 of the log are missing"):
        follower.refresh()


@pytest.mark.parametrize("pause_ms", [15_000, 301_000])
@pytest.mark.parametrize("journal", JOURNALS)
def test_a_writer_withdraws_its_entry_if_a_lost_number_precedes_it(world: World, journal: str, pause_ms: int) -> None:
    prefix, write = written(world, journal, 3)
    root = world.root(world.store)
    write(root)
    lost = len(numbers(world.store, prefix))
    written(world, journal, 3)
    world.store.delete(commit_key(prefix, lost))
    left = numbers(world.store, prefix)
    world.now_ms += pause_ms
    with pytest.raises(Corrupt, match=f"entry {lost} of the log is missing|defaults of .* are lost"):
        write(root)
    assert numbers(world.store, prefix) == left


def test_polling_does_not_hide_a_lost_number_from_a_writer(world: World) -> None:
    """A poll that finds no next entry does not show whether later numbers exist."""
    written(world, "commits", 3)
    topic = world.root(world.store).topic("t")
    topic.append([{"value": "x"}])
    written(world, "commits", 3)
    world.store.delete(commit_key("t", 5))
    left = numbers(world.store, "t")
    for _ in range(3):
        world.now_ms += 10_000
        assert topic.log.refresh().number == 4
    with pytest.raises(Corrupt, match="entry 5 of the log is missing, although entries 6 to 7 exist"):
        topic.append([{"value": "y"}])
    assert numbers(world.store, "t") == left


@pytest.mark.parametrize("journal", ["group", "decisions", "leases"])
def test_a_gap_is_detected_in_read_entries_if_the_listing_is_stale(journal: str) -> None:
    """Entries after the gap are read in parallel with it."""
    world = World()
    world.store.parallel_reads = FAR  # type: ignore[misc]
    world.root(world.store).create_topic("t")
    prefix, write = written(world, journal, 3)
    world.store.delete(commit_key(prefix, 1))
    left, real = numbers(world.store, prefix), world.store.list
    late_until = world.now_ms + 30_000

    def listing(start: str, after: str = "") -> Iterator[ObjectInfo]:
        is_late = start == f"{prefix}/_log/0" and world.now_ms < late_until
        return iter([] if is_late else list(real(start, after)))

    world.store.list = listing  # type: ignore[method-assign]
    with pytest.raises(Corrupt, match="entry 1 of the log is missing"):
        write(world.root(world.store))
    world.now_ms = late_until
    assert numbers(world.store, prefix) == left


def test_commits_that_arrive_during_opening_are_not_a_gap(world: World) -> None:
    written(world, "commits", 3)
    store = HookedStore(world.store)
    appends = iter(range(2))
    real = world.store.list
    writer = other(world, world.store)

    def listing(prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        if prefix == "t/_log/0" and next(appends, None) is not None:
            writer.append([{"value": "late"}])
            writer.append([{"value": "late"}])
        return real(prefix, after)

    store.list = listing  # type: ignore[method-assign]
    begun = world.now_ms
    assert world.root(store).topic("t").log.state(refresh=False).version >= 5
    assert world.now_ms == begun


def test_numbers_deleted_by_the_vacuum_are_not_a_gap() -> None:
    world, store, _, topic = setup()
    for _ in range(140):
        publish(topic, 1)
    collect(store, 100)
    assert other(world, store).log.state().version == 140
    # A suspended process creates one of them again.
    store.create(commit_key("t", 50), b"late")
    assert other(world, store).log.state().version == 140
    publish(other(world, store))


def test_a_log_without_its_checkpoints_is_not_empty() -> None:
    """Otherwise, a topic with this name would be created, and its commits would end where the old commits begin."""
    world, store, _, topic = setup()
    for _ in range(140):
        publish(topic, 1)
    collect(store, 100)
    for info in list(store.list(checkpoint_prefix("t"))):
        store.delete(info.key)
    with pytest.raises(Corrupt, match="entries 0 to 99 of the log are missing"):
        world.root(store).topic("t")
    with pytest.raises(Corrupt, match="entries 0 to 99 of the log are missing"):
        world.root(store).create_topic("t")


@pytest.mark.parametrize("journal", ["group", "leases"])
def test_a_reader_without_the_root_reports_the_gap(journal: str, world: World) -> None:
    prefix, _ = written(world, journal)
    world.store.delete(commit_key(prefix, 3))
    root = world.root(world.store)
    read: Callable[[], object] = EntryChain(world.store, GROUPS, "g").latest
    with pytest.raises(Corrupt, match="entry 3 of the log is missing"):
        read_job_leases(root, "retain") if journal == "leases" else read()


def test_deleted_old_entries_are_not_a_gap_for_a_reader_without_the_root() -> None:
    world = World()
    store = world.store
    with small_limits(checkpoint_entries=3):
        root = world.root(store)
        root.create_topic("t")
        for _ in range(12):
            commit_offsets(root)
            world.now_ms += 86_400_000
        log = Groups(root).group("g").log
        collect_entries(log, world.now_ms, keep_ms=86_400_000, dry_run=False)
        assert len(numbers(store, "_groups/g")) < 12
        # A suspended process creates one of them again.
        store.create(commit_key("_groups/g", 0), b"late")
        assert EntryChain(store, log.kind, "g").latest().number == 11


def test_chain_waits_for_entries_that_a_name_cache_hides(world: World) -> None:
    prefix, _ = written(world, "group")
    key = commit_key(prefix, 3)
    data = world.store.get(key)
    store = NameCachingStore(world.store, lambda: world.now_ms, name_ms=60_000)
    world.store.delete(key)
    assert EntryChain(store, GROUPS, "g", world.env()).read(3) is None
    world.store.create(key, data)
    assert EntryChain(store, GROUPS, "g").read(3) is None
    assert EntryChain(store, GROUPS, "g", world.env()).existing(3).number == 3


def old_listing(inner: Store, key: str) -> HookedStore:
    """A store whose first listing lacks one object, as if the listing started before the object was created."""
    missing = {key}

    def after(verb: str, prefix: str, result: Any) -> Any:
        if verb != "list":
            return result
        objects = list(result)
        hidden = {info.key for info in objects} & missing
        missing.difference_update(hidden)
        return iter([info for info in objects if info.key not in hidden])

    return HookedStore(inner, after=after)


def test_a_listing_that_lacks_an_earlier_entry_is_repeated(world: World) -> None:
    prefix, _ = written(world, "group")
    key = commit_key(prefix, 3)
    with pytest.raises(Corrupt, match="entry 3 of the log is missing"):
        EntryChain(old_listing(world.store, key), GROUPS, "g").span()
    newest = EntryChain(world.store, GROUPS, "g").span().last
    assert EntryChain(old_listing(world.store, key), GROUPS, "g", world.env()).span().last == newest


def test_deleting_a_journal_never_leaves_a_gap() -> None:
    world = World()
    with small_limits(checkpoint_entries=3):
        root = world.root(world.store)
        root.create_topic("t")
        for _ in range(11):
            commit_offsets(root)
        # As after the deletion of old entries.
        world.store.delete(commit_key("_groups/g", 0))
        world.store.delete(commit_key("_groups/g", 1))
        log = Groups(root).group("g").log
        world.now_ms += 30 * 86_400_000
        delete, numbers_seen = world.store.delete, list[int]()

        def deleted(key: str) -> None:
            delete(key)
            numbers_seen.append(Groups(world.root(world.store)).group("g").state().number)

        world.store.delete = deleted  # type: ignore[method-assign]
        collect_log(log, world.now_ms, dry_run=False)
        assert not list(world.store.list("_groups/"))
        assert numbers_seen == sorted(numbers_seen, reverse=True)
        assert numbers_seen[-1] == -1
