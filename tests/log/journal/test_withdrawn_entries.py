"""A writer withdraws an entry that it has just created only if no other process can have continued from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import Corrupt, Fenced, Unavailable
from sparklog.format import crc32c
from sparklog.log.decisions.decision import BY_OWNER
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.journal.documents import encode
from sparklog.log.journal.names import ROOT_KEY, commit_key
from sparklog.log.journal.numbered_objects import CreateResult, Expected, NumberedObjects
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import Store
from sparklog.testing.world import START_MS, World
from sparklog.testing.wrapper_stores import CountingStore, HookedStore, WrapperStore
from tests.support.name_caching_store import NameCachingStore
from tests.support.records import rows


def entry(name: str, previous: bytes | None = None) -> bytes:
    crc = None if previous is None else crc32c.crc32c(previous)
    return encode({"format": 1, "readFeatures": [], "prevCrc": crc, "commitId": name})


ZERO = entry("zero")
ONE = entry("one", ZERO)
TWO = entry("two", ONE)
LOST = entry("lost", ZERO)
AFTER_ONE, AFTER_LOST = TWO, entry("after-lost", LOST)


def always_created(verb: str, key: str, result: Any) -> Any:
    """Report success to each creator."""
    return True if verb == "create" else result


class Case:
    """Entries from 0 on in the journal "x", and a writer."""

    def __init__(self, *entries: bytes) -> None:
        self.world = World()
        self.store = HookedStore(self.world.store)
        for number, data in enumerate(entries):
            self.other(number, data)

    def numbered(self, store: Store | None = None) -> NumberedObjects:
        return NumberedObjects(self.store if store is None else store, "x", self.world.env())

    def other(self, number: int, data: bytes) -> bool:
        """Create an entry as another process."""
        return self.store.create(self.numbered().key(number), data)

    def remove(self, number: int) -> None:
        self.world.store.delete(self.numbered().key(number))

    def write(self, number: int, data: bytes, after: bytes, looked_ms: int = 0) -> CreateResult:
        """Create an entry after the one that the writer read this many ms ago."""
        numbered = self.numbered()
        basis = Expected(numbered.env.now(), crc32c.crc32c(after))
        self.world.now_ms += looked_ms
        name = {ONE: "one", TWO: "two"}[data]
        return numbered.create(number, data, name, basis)[0]

    def at(self, seconds: int, action: Callable[[], object]) -> None:
        """Run a function once, at this time after the start, while the writer waits."""
        due = [action]

        def run() -> None:
            if due and self.world.now_ms >= START_MS + 1000 * seconds:
                due.pop()()

        self.world.on_sleep = run

    def there(self, number: int) -> bytes | None:
        return self.numbered().read(number)


def test_an_entry_added_to_a_stale_listing_is_not_withdrawn() -> None:
    """The client of Writer A caches the listing of a directory for a minute.

    1. A lists the log: entry 0.
    2. Writer B creates 1 and a checkpoint of it in another directory. A opens the log from the checkpoint.
    3. A creates 2. Its client adds it to the cached listing.
    4. A reads 1. Its client hides the name, and lists 0 and 2.
    """
    case = Case(ZERO)
    numbered = case.numbered(NameCachingStore(case.store, case.world.clock, folder_ms=60_000))
    assert numbered.listed(-1) == [0]
    case.other(1, ONE)
    answer, _ = numbered.create(2, TWO, "two", Expected(numbered.env.now(), crc32c.crc32c(ONE)))
    assert answer is CreateResult.CREATED
    assert case.there(2) == TWO
    assert 60_000 <= case.world.now_ms - START_MS < SETTLE_MS


def test_an_entry_after_a_missing_one_is_withdrawn_after_the_wait() -> None:
    """The root was restored without entry 1, which the writer has read."""
    case = Case(ZERO)
    with pytest.raises(Fenced, match=r"02\.json was withdrawn"):
        case.write(2, TWO, after=ONE)
    assert case.there(2) is None
    assert case.world.now_ms - START_MS > SETTLE_MS


def test_an_entry_after_a_corrupt_one_is_kept() -> None:
    """The previous entry was damaged after the writer had read it. Its readers report this, and `repair` can fix it."""
    case = Case(ZERO, ONE + b"damaged")
    assert case.write(2, TWO, after=ONE) is CreateResult.CREATED
    assert case.there(2) == TWO


class Outage(WrapperStore):
    """The requests of one process, which fail for some seconds after the start."""

    def __init__(self, case: Case, verb: str, seconds: range) -> None:
        super().__init__(case.store)
        self.case, self.verb, self.seconds = case, verb, seconds
        self.failed = 0

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        if verb == self.verb and int((self.case.world.now_ms - START_MS) / 1000) in self.seconds:
            self.failed += 1
            raise Unavailable(f"{key}: the server does not respond")
        return send()


@pytest.mark.parametrize("verb", ["get", "list"])
def test_an_entry_after_a_missing_one_is_withdrawn_even_if_requests_fail_at_the_end_of_the_wait(verb: str) -> None:
    """The store fails for some seconds when Writer A must decide.

    1. A has read entry 1. An operator restores the root, with the same id, from a copy that ends at entry 0.
    2. A creates 2, and reads 1 repeatedly for 90 s, because a cache may hide it.
    3. At the end of the wait, requests fail for a while.
    4. A repeats them, finds that 1 is missing, and deletes 2. Otherwise, the log could not be opened.
    """
    case = Case(ZERO)
    store = Outage(case, verb, range(85, 110))
    numbered = case.numbered(store)
    with pytest.raises(Fenced, match=r"02\.json was withdrawn"):
        numbered.create(2, TWO, "two", Expected(numbered.env.now(), crc32c.crc32c(ONE)))
    assert store.failed > 1
    assert case.there(2) is None


def test_the_outcome_is_unknown_if_requests_fail_long_after_the_wait() -> None:
    case = Case(ZERO)
    numbered = case.numbered(Outage(case, "get", range(1, 1_000)))
    with pytest.raises(
        Unavailable, match=r"outcome of creating .*02\.json is unknown: x/_log/0+1\.json: the server does not"
    ):
        numbered.create(2, TWO, "two", Expected(numbered.env.now(), crc32c.crc32c(ONE)))
    assert case.there(2) == TWO
    assert SETTLE_MS < case.world.now_ms - START_MS < 2 * SETTLE_MS + 5_000


MOMENTS = ("before the last read", "between the last read and the listing", "after the listing", "before the deletion")


@pytest.mark.parametrize("other", [ONE, LOST], ids=["the entry that A has read", "another entry"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_previous_entry_created_at_the_end_of_the_wait_is_accepted(moment: str, other: bytes) -> None:
    """Writer B creates the missing previous entry at each step of the decision that Writer A makes after its wait.

    1. A has read entry 1. An operator restores the root, with the same id, from a copy that ends at entry 0.
    2. A creates 2, and reads 1 repeatedly for 90 s.
    3. Writer B, which has opened the restored root, creates 1. (Or 1 was hidden from A until now.)
    4. A keeps 2 only if it follows the entry 1 that the log now contains.
    """
    case = Case(ZERO)
    created: list[bool] = []

    def create() -> None:
        if not created:
            created.append(case.other(1, other))

    def before(verb: str, key: str) -> None:
        is_over = case.world.now_ms - START_MS > SETTLE_MS
        is_read = verb == "get" and key == numbered.key(1)
        step = 0 if is_over and is_read else 1 if is_over and verb == "list" else 3 if verb == "delete" else None
        if step is not None and moment == MOMENTS[step]:
            create()

    def after(verb: str, key: str, result: Any) -> Any:
        if case.world.now_ms - START_MS > SETTLE_MS and moment == MOMENTS[2] and verb == "list":
            result = list(result)
            create()
        return result

    numbered = case.numbered(HookedStore(case.store, before=before, after=after))
    expected = Expected(numbered.env.now(), crc32c.crc32c(ONE))
    if other is ONE and moment in MOMENTS[:2]:
        assert numbered.create(2, TWO, "two", expected)[0] is CreateResult.CREATED
        assert case.there(2) == TWO
    else:
        with pytest.raises(Fenced, match=r"02\.json was withdrawn"):
            numbered.create(2, TWO, "two", expected)
        assert case.there(2) is None
    assert created == [True]
    assert case.there(1) == other


@pytest.mark.parametrize("is_late", [False, True])
def test_an_entry_that_another_entry_follows_is_kept(is_late: bool) -> None:
    """Writer B reads entry 1, which is hidden from A for very long, and creates 3 after A's 2.

    `is_late`: after A has read 3, and before A deletes 2.
    """
    case = Case(ZERO)
    three = entry("three", TWO)
    if is_late:
        case.store.before_next("delete:commit", lambda: case.other(3, three))
    else:
        case.at(30, lambda: case.other(3, three))
    with pytest.raises(
        Unavailable,
        match=r"outcome of creating .*02\.json is unknown: .*/0+1\.json is missing, although x/_log/0+3\.json exists",
    ):
        case.write(2, TWO, after=ONE)
    assert (case.there(2), case.there(3)) == (TWO, three)


def test_two_processes_that_outlived_the_root_both_withdraw_their_entries() -> None:
    """Writer B has created 3 after A's 2, and withdraws it a little later than A could withdraw its own."""
    case = Case(ZERO)
    case.other(3, entry("three", TWO))
    case.at(120, lambda: case.remove(3))
    with pytest.raises(Fenced, match=r"02\.json was withdrawn"):
        case.write(2, TWO, after=ONE)
    assert (case.there(2), case.there(3)) == (None, None)


def decisions(world: World) -> DecisionLog:
    """Return the log of a transactional id, as opened by a new process."""
    return world.root().engine.decisions.log("job")


@pytest.mark.parametrize("polls", [1, 2])
def test_no_process_appends_after_an_entry_of_a_process_that_outlived_the_root(polls: int) -> None:
    """An acknowledged entry must not follow one that readers of the restored root do not have.

    1. Writers A and B (and C, with two polls) have read the log up to entry 2. An operator restores the root, with the
       same id, from a copy that ends at entry 0.
    2. A creates 3, and reads 2 repeatedly for 90 s, because a cache may hide it.
    3. (With two polls, B reads 3. C, who has also read 3, creates 4, and reads 3 and 2.)
    4. B refreshes and creates the next entry. The previous entry exists. B also reads 2, which it read before 3.
    5. B finds that 2 is missing, deletes its entry and fails. Then A (and C) can delete their entries.
    """
    world = World()
    writers = [decisions(world) for _ in range(1 + polls)]
    writers[0].abort(0, BY_OWNER)
    copy = world.store.snapshot()
    for number in (1, 2):
        writers[0].abort(number, BY_OWNER)
    for writer in writers:
        writer.refresh()
    world.store.restore(copy)
    waiting = iter(writers[1:])

    def build() -> None:
        writer = next(waiting, None)
        if writer is not None:
            for each in writers:
                each.refresh()
            with pytest.raises(Fenced, match="was withdrawn"):
                writer.abort(writer.current().newest + 1, BY_OWNER)

    world.on_sleep = build
    with pytest.raises(Fenced, match="was withdrawn"):
        writers[0].abort(3, BY_OWNER)
    assert next(waiting, None) is None
    assert sorted(world.store.snapshot()) == sorted(copy)
    assert decisions(world).current().newest == 0


def test_the_first_append_on_a_disk_after_a_poll_reads_one_earlier_commit() -> None:
    """The writer reads the commit from before the poll, because the other writer may have outlived the root."""
    world = World()
    world.root().create_topic("t")
    topic = world.root(counting := CountingStore(world.store)).topic("t")
    topic.append(rows("a"))
    other = world.topic("t")
    other.append(rows("b"))
    other.append(rows("c"))
    topic.log.snapshot()
    reads = []
    for value in "def":
        counting.reset()
        topic.append(rows(value))
        counting.expect(get=4 if value == "d" else 3, create=1)
        reads.append([key for verb, key in counting.keys if verb == "get"])
    assert reads[0] == [commit_key("t", 4), ROOT_KEY, commit_key("t", 3), commit_key("t", 1)]


def test_an_entry_that_fills_the_gap_of_a_lost_entry_is_withdrawn() -> None:
    """Entry 1 was lost after 2 had been created. A writer that last polled before that creates a different 1."""
    case = Case(ZERO)
    case.other(2, AFTER_LOST)
    with pytest.raises(Corrupt, match="entry 1 of the log is missing, although entry 2 exists"):
        case.write(1, ONE, after=ZERO, looked_ms=5_000)
    assert case.there(1) is None


def test_an_entry_is_kept_if_the_next_one_belongs_to_a_process_that_outlived_the_root() -> None:
    """The next entry is withdrawn, so no entry was lost."""
    case = Case(ZERO)
    case.other(2, AFTER_LOST)
    case.at(30, lambda: case.remove(2))
    assert case.write(1, ONE, after=ZERO, looked_ms=5_000) is CreateResult.CREATED
    assert case.there(1) == ONE


def test_a_withdrawn_entry_is_restored_if_another_entry_follows_it() -> None:
    """Between the writer's read and its deletion, the process that outlived the root withdraws 2, and B creates 2."""
    case = Case(ZERO)
    case.other(2, AFTER_LOST)

    def replace() -> None:
        case.remove(2)
        case.other(2, AFTER_ONE)

    case.store.before_next("delete:commit", replace)
    assert case.write(1, ONE, after=ZERO, looked_ms=5_000) is CreateResult.CREATED
    assert (case.there(1), case.there(2)) == (ONE, AFTER_ONE)


@pytest.mark.parametrize(("following", "looked_ms"), [(AFTER_ONE, 5_000), (None, 5_000), (AFTER_LOST, 0)])
def test_an_entry_with_a_following_entry_is_acknowledged_immediately(following: bytes | None, looked_ms: int) -> None:
    """The next entry is not read, because the latest entry was read a moment ago."""
    case = Case(ZERO)
    if following is not None:
        case.other(2, following)
    assert case.write(1, ONE, after=ZERO, looked_ms=looked_ms) is CreateResult.CREATED
    assert case.world.slept == []


def test_an_entry_of_another_process_is_never_withdrawn() -> None:
    """The store reports to two processes that they have created entry 1, and keeps the entry of the other process."""

    case = Case()
    numbered = case.numbered(lying := HookedStore(case.world.store, after=always_created))
    for number, data in enumerate((ZERO, LOST, AFTER_LOST)):
        lying.create(numbered.key(number), data)
    basis = Expected(numbered.env.now(), crc32c.crc32c(ZERO))
    case.world.now_ms += 5_000
    with pytest.raises(
        Fenced, match=r"01\.json .*differs from the object that this process has read, which created commit one there"
    ):
        numbered.create(1, ONE, "one", basis)
    assert [numbered.read(number) for number in range(3)] == [ZERO, LOST, AFTER_LOST]
