"""Transactional ids expire. A process that is suspended or dies at any request loses no data and blocks no other
process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.log.decisions import decision_log, expired_ids
from sparklog.log.decisions.decision import DECISION_JSON, Decisions, add_expired
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import TopicFiles
from sparklog.log.write.arrow_data import write_files
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Crash
from sparklog.testing.world import DAY_MS
from sparklog.testing.wrapper_stores import CountingStore, WrapperStore
from sparklog.transactions import completion
from sparklog.transactions.completion import CollectedDecisions, collect, resolve_topic
from sparklog.transactions.listing import describe_transaction, list_transactions
from sparklog.transactions.producer import transactional
from sparklog.transactions.publishing import publish
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

LOG = "_transactions/job/_log/"


def write(root: Root, *values: str, name: str = "job") -> None:
    producer = transactional(root, name)
    for value in values:
        with producer.begin() as transaction:
            transaction.append("a", rows(value))
            transaction.append("b", rows(value))


def cleaned(root: Root) -> CollectedDecisions:
    for topic in ("a", "b"):
        resolve_topic(root.topic(topic))
    return collect(root, expiration_ms=DAY_MS)


def expire(world: TopicsWorld, *days: int) -> list[CollectedDecisions]:
    """Run maintenance on consecutive days; by default until an idle id is deleted."""
    done = []
    for number in days or (2, 1, 8):
        world.now_ms += number * DAY_MS
        done.append(cleaned(world.root()))
        assert done[-1].failures == []
    return done


def used() -> TopicsWorld:
    world = TopicsWorld()
    write(world.root(), "1", "2")
    return world


def objects(world: TopicsWorld, prefix: str = LOG) -> list[str]:
    return [info.key for info in world.store.list(prefix)]


def test_one_entry_of_an_expired_id_is_kept_in_an_archive() -> None:
    world = used()
    before = world.root().engine.decisions.log("job").refresh()
    first, second, third = expire(world)
    assert (first.expired, second.expired, third.expired) == (1, 1, 1)
    gone = before.number + 3
    assert (first.objects, second.objects, third.objects) == (0, 0, gone), (
        "its entries and the copy of the last one, a week later"
    )
    assert objects(world) == []
    [register] = {key.split("/")[1] for key in objects(world, "_transactions/")}
    assert register == "expired-ids%3A" + expired_ids.archive_of("job")[-1]
    state = world.root().engine.decisions.log("job").refresh()
    assert (state.number, state.newest, state.op, state.reason) == (
        before.number + 1, before.newest + 1, "expire", "expired",
    )  # fmt: skip
    write(world.root(), "3")
    after = world.root().engine.decisions.log("job").refresh()
    assert (after.number, after.newest) == (state.number + 2, state.newest + 2), "numbers go on"
    assert world.values("a") == world.values("b") == ["1", "2", "3"]
    assert cleaned(world.root()).expired == 0
    expire(world)
    assert objects(world) == []
    write(world.root(), "4")
    assert world.values("b") == ["1", "2", "3", "4"]
    assert after.read_features == ("expiredIds",), "releases before 0.7 refuse it in one line"


def test_ids_in_use_do_not_expire() -> None:
    world = used()
    write(world.root(), "1", name="young")
    waiting = transactional(world.root(), "open").begin()
    waiting.append("c", rows("1"))
    world.now_ms += 3 * DAY_MS
    waiting._prepare_topics()
    write(world.root(), "2", name="young")
    unrecorded = used()
    unrecorded.now_ms += 3 * DAY_MS
    assert collect(unrecorded.root(), expiration_ms=DAY_MS).expired == 0, "topics have not recorded its COMMIT"
    assert collect(world.root()).expired == 0, "that is not set"
    assert collect(world.root(), expiration_ms=DAY_MS, dry_run=True).expired == 0
    cleaned(world.root())
    states = {item.id: item.state for item in list_transactions(world.root())}
    assert states == {"job": "Dead", "young": "CompleteCommit", "open": "Ongoing"}
    waiting.commit()
    assert world.values("c") == ["1"]


def test_a_transaction_that_began_before_the_expiry_gets_a_clear_error() -> None:
    world = used()
    late = transactional(world.root(), "job").begin()
    late.append("a", rows("late"))
    expire(world)
    message = r"transaction 3 of 'job' .* \(the id expired after it was idle for transactional.id.expiration.ms\)"
    with pytest.raises(Conflict, match=message):
        late.commit()
    with pytest.raises(BadRequest, match="begin with 'expired-ids:' are reserved"):
        transactional(world.root(), "expired-ids:x")
    assert world.values("a") == ["1", "2"]


def publish_batch(root: Root, batch: int) -> bool:
    written = []
    for name in ("a", "b"):
        target = root.topic(name).log.append_target()
        written.append(
            TopicFiles(target, tuple(write_files(rows(f"{batch}"), target, root.env, options=None, writer=None)))
        )
    return publish(root, "query", written, key=WriterKey("query", batch, "run")).skipped


def test_a_query_that_was_stopped_for_weeks_does_not_write_a_batch_twice() -> None:
    world = TopicsWorld()
    for batch in range(3):
        assert not publish_batch(world.root(), batch)
    expire(world)
    assert objects(world, "_transactions/query/") == []
    assert publish_batch(world.root(), 2), "a replay"
    assert not publish_batch(world.root(), 3)
    assert world.values("a") == world.values("b") == ["0", "1", "2", "3"]


def test_listings_show_an_id_until_it_is_deleted_and_describe_still_finds_it() -> None:
    world = used()
    expire(world, 2)
    assert [(item.id, item.state) for item in list_transactions(world.root())] == [("job", "Dead")]
    expire(world, 1, 8)
    assert list_transactions(world.root()) == []
    assert describe_transaction(world.root(), "job", []).state == "Dead"
    with pytest.raises(NotFound, match="was never used"):
        describe_transaction(world.root(), "jobs", [])


def test_retain_expires_ids_according_to_the_root_config() -> None:
    world = used()
    root = world.root()
    for topic in ("a", "b"):
        resolve_topic(root.topic(topic))
    for expected, value in ((0, None), (0, 5 * DAY_MS), (1, DAY_MS)):
        if value is not None:
            root.alter_defaults({"transactional.id.expiration.ms": value})
        world.now_ms += DAY_MS + 1
        retain_root(world.root(), Settings(world.now_ms))
        assert sum(item.state == "Dead" for item in list_transactions(world.root())) == expected
    for text in ("0", "x", str(2**31)):
        with pytest.raises(BadRequest, match="must be an integer from 1 to 2147483647, or -1 \\(never\\), found"):
            root.alter_defaults({"transactional.id.expiration.ms": text})
    root.alter_defaults({"transactional.id.expiration.ms": -1})
    assert root.defaults().expiration_ms() is None


def test_a_daily_used_id_needs_no_additional_requests() -> None:
    world = used()
    store = CountingStore(world.store)
    root = world.root(store)
    store.reset()
    write(root, "3")
    assert not [key for _, key in store.keys if "expired-ids" in key]
    world.now_ms += 3 * DAY_MS
    store.reset()
    write(world.root(store), "4")
    looks = [verb for verb, key in store.keys if "expired-ids" in key]
    assert looks == ["list", "get", "list"], "after days it is looked up"


# -- suspended processes


class Sleeper(WrapperStore):
    """The connection of a process that is suspended before or after one request, and then dies or continues."""

    def __init__(self, inner: Store, sleeps: Callable[[], None] | None, number: int, after: bool, dies: bool) -> None:
        super().__init__(inner)
        self.sleeps, self.number, self.after, self.dies = sleeps, number, after, dies
        self.made = 0

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        self.made += 1
        if self.sleeps is None or self.made != self.number + 1:
            return send()
        try:
            if not self.after:
                self.sleeps()
            return send()
        finally:
            if self.after:
                self.sleeps()
            if self.dies:
                raise Crash(f"{verb} {key}")


@dataclass(frozen=True)
class Night:
    """The actions of a process when it is suspended, and the actions of others in the meantime."""

    name: str
    prepared: Callable[[TopicsWorld], None]
    works: Callable[[TopicsWorld, Root], None]
    meanwhile: Callable[[TopicsWorld], None]


def commits(world: TopicsWorld, root: Root) -> None:
    write(root, "late")


def opens(world: TopicsWorld, root: Root) -> None:
    root.engine.decisions.log("job").refresh()
    write(root, "late")


def copies(world: TopicsWorld, root: Root) -> None:
    root.engine.decisions.log("job").write_checkpoint()


def cleans(world: TopicsWorld, root: Root) -> None:
    cleaned(root)


def nothing(world: TopicsWorld) -> None:
    pass


def weeks(world: TopicsWorld) -> None:
    expire(world)


def used_again(world: TopicsWorld) -> None:
    """The id expires, is used for longer than before, and expires again."""
    expire(world)
    write(world.root(), "again", "and again", "and again")
    expire(world)


def in_use(world: TopicsWorld) -> None:
    expire(world)
    write(world.root(), "again", "and again", "and again")


def minutes(world: TopicsWorld) -> None:
    """The actions of others within minutes."""
    world.now_ms += 600_000
    cleaned(world.root())
    cleaned(world.root())


NIGHTS = [
    Night("a writer", nothing, commits, weeks),
    Night("a writer of an id that is used again", nothing, commits, used_again),
    Night("a writer of an id that is in use", nothing, commits, in_use),
    Night("a copy", nothing, copies, in_use),
    Night("a copy of an id that is gone", nothing, copies, weeks),
    Night("the first use", lambda world: expire(world) and None, commits, in_use),
    Night("expiry", lambda world: expire(world, 1) and setattr(world, "now_ms", world.now_ms + DAY_MS), cleans, in_use),
    Night("the register", lambda world: expire(world, 2) and None, cleans, used_again),
    Night(
        "deletion",
        lambda world: expire(world, 2, 1) and setattr(world, "now_ms", world.now_ms + 8 * DAY_MS),
        cleans,
        used_again,
    ),
    Night("a writer for minutes", lambda world: expire(world, 2) and None, opens, minutes),
]


def newest(world: TopicsWorld) -> int:
    return world.root().engine.decisions.log("job").refresh().number


def sleepless(night: Night) -> tuple[dict[str, tuple[bytes, int]], int, int]:
    """Return the store before the suspension, its time, and the number of requests."""
    world = used()
    night.prepared(world)
    before, now_ms = world.store.snapshot(), world.now_ms
    store = Sleeper(world.store, None, 0, False, False)
    night.works(world, world.root(store))
    return before, now_ms, store.made


def sleeps(night: Night, before: Any, now_ms: int, number: int, after: bool, dies: bool) -> None:
    world = TopicsWorld()
    world.now_ms = now_ms
    world.processes = 1_000  # ids that are not among those in the store
    world.store.restore(before)
    numbers: list[int] = []

    def meanwhile() -> None:
        night.meanwhile(world)
        numbers.append(newest(world))

    acknowledged = False
    with suppress(Crash, SparklogError):
        night.works(world, world.root(Sleeper(world.store, meanwhile, number, after, dies)))
        acknowledged = night.works in (commits, opens)
    for _ in range(2):
        numbers.append(newest(world))
        write(world.root(), "z")
        expire(world)
        assert objects(world) == []
    assert numbers == sorted(numbers), "no number is used twice"
    found = world.values("a")
    assert found == world.values("b")
    others = [value for value in found if value != "late"]
    assert (others[:2], others[-2:]) == (["1", "2"], ["z", "z"])
    assert len(others) - 4 == (3 if night.meanwhile in (used_again, in_use) else 0)
    assert found.count("late") <= 1
    assert not acknowledged or "late" in found
    assert world.undecided("a") == world.undecided("b") == [0]


def nights(night: Night, step: int = 1, first: int = 0) -> int:
    """Suspend the process at each request, before and after it. Let it continue or die. `step`: skip requests."""
    before, now_ms, requests = sleepless(night)
    cases = [(number, after, dies) for number in range(requests) for after in (False, True) for dies in (False, True)]
    for place in range(first, len(cases), step):
        sleeps(night, before, now_ms, *cases[place])
    return len(cases)


@pytest.mark.sweep
@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_a_process_that_sleeps(night: Night) -> None:
    assert nights(night, 46) > 4


@pytest.mark.slow
@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_a_process_that_sleeps_at_any_request(night: Night) -> None:
    assert nights(night) > 8


# -- broken rules


def numbers_begin_again(patch: pytest.MonkeyPatch) -> None:
    """A process that finds no journal starts a new one, without reading the archive."""
    patch.setattr(DecisionLog, "_archived_entry", lambda self: None)


def what_is_in_the_folder_counts(patch: pytest.MonkeyPatch) -> None:
    """If there are entries, the archive is not read, however old the entries are."""
    patch.setattr(decision_log, "MIN_EXPIRED_AGE_MS", 10**15)


def registers_go_back(patch: pytest.MonkeyPatch) -> None:
    """The later one of two cleaners determines the latest entry of an id."""

    def last(base: Decisions, entries: dict[str, Decisions]) -> Decisions | None:
        return add_expired(base, {name: DECISION_JSON.encode(entry).decode() for name, entry in entries.items()})

    patch.setattr(completion, "archive_newer", last)


def the_register_confirms_nothing(patch: pytest.MonkeyPatch) -> None:
    """The previous entry must be in the directory."""
    patch.setattr(DecisionLog, "_archived", lambda self: None)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("mutate", "night", "first"),
    [
        (numbers_begin_again, "a writer", 0),
        (what_is_in_the_folder_counts, "a copy of an id that is gone", 25),
        (registers_go_back, "the register", 126),
        (the_register_confirms_nothing, "the first use", 0),
    ],
)
def test_a_violated_rule_is_detected(
    mutate: Callable[[pytest.MonkeyPatch], None], night: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first` is the number of the first case to run, which is the first case that detected the rule."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, SparklogError)):
        nights(next(item for item in NIGHTS if item.name == night), 1, first)


def test_without_the_check_unrecorded_commits_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = used()
    monkeypatch.setattr(completion, "_topic_recorded", lambda *of: True)
    monkeypatch.setattr(completion, "_in_use", lambda root: iter(()))
    for days in (2, 1, 8):
        world.now_ms += days * DAY_MS
        collect(world.root(), expiration_ms=DAY_MS)
    assert world.values("b") == ["1"], "the rule is needed"
