"""Backups and restores with writers, maintenance and crashes at each of their requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from sparklog.errors import Conflict, SparklogError, Unavailable
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.topic.root import Root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.retries import SETTLE_MS
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.tools.backup import backing_up, consistent_cut
from sparklog.tools.backup import repository as place_module
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.transactions.completion import collect
from sparklog.transactions.producer import transactional
from tests.support.built_once import built_once
from tests.support.hiding_store import HidingStore
from tests.support.maintaining import maintain
from tests.support.name_caching_store import NameCachingStore
from tests.support.seeds import thinned
from tests.support.small_limits import small_limits
from tests.tools.backup.backup_world import BackupWorld, batch, contents, rows_of

pytestmark = pytest.mark.sweep

ID = "mover"


class Story:
    """Two topics with transactions, a group that reads them, and a backup."""

    def __init__(self) -> None:
        self.world = BackupWorld()
        self.repository = self.world.another("place")
        self.moved = 0
        self.quiet = False
        root = self.world.root()
        for name in ("a", "b"):
            root.create_topic(name, configs={"file.delete.delay.ms": str(HOUR_MS)})
        for _ in range(2):
            self.move()

    def move(self) -> None:
        """Write one transaction to both topics with the offsets of a group; then read and record it."""
        root = self.world.root()
        self.moved += 1
        value = b"move %d" % self.moved
        with transactional(root, ID).begin() as writing:
            writing.append("a", batch([value]))
            writing.append("b", batch([value]))
            writing.send_offsets("movers", {"a": {0: self.moved}})
        ends = {name: {0: int(root.topic(name).log.state().log_end[0])} for name in ("a", "b")}
        Groups(root).group("readers").join("one").commit(ends)

    def begin(self) -> None:
        """Prepare such a transaction without ending it."""
        root = self.world.root()
        self.moved += 1
        self.open = transactional(root, ID, timeout_ms=HOUR_MS).begin()
        for name in ("a", "b"):
            self.open.append(name, batch([b"move %d" % self.moved]))
        self.open.send_offsets("movers", {"a": {0: self.moved}})
        self.open.prepare()

    def decide(self) -> None:
        self.open.commit()

    def give_up(self) -> None:
        """Abort a transaction; after that, the previous COMMIT is not the latest decision and can be deleted."""
        writing = transactional(self.world.root(), ID).begin()
        writing.append("a", batch([b"never"]))
        writing.abort()

    def record(self) -> None:
        """Record all outcomes in topics and groups, and delete the COMMITs."""
        root = self.world.root()
        for name in ("b", "a"):
            root.topic(name).append(batch([b"plain"]))
        Groups(root).group("movers").join("two").commit({"b": {0: 0}})
        collect(root)

    def tidy(self) -> None:
        """Replace recent files, advance the clock by hours and run the vacuum."""
        for name in ("a", "b"):
            self.world.compact(name)
        for _ in range(2):
            self.world.now_ms += 2 * HOUR_MS
            self.world.topic("a").append(batch([b"plain"]))
            self.world.topic("b").append(batch([b"plain"]))
            self.world.retain()

    def at(self, moments: Callable[[int], bool], *acts: Callable[[], None]) -> Callable[[Call], None]:
        """Run other actions before these requests."""
        seen = [0]

        def decide(call: Call) -> None:
            if self.quiet:
                return
            seen[0] += 1
            if moments(seen[0] - 1):
                self.quiet = True
                for act in acts:
                    act()
                self.quiet = False

        return decide

    def back_up(self, decide: Callable[[Call], Fault | None] = lambda call: None) -> Root:
        """Back up, and restore the backup."""
        source = FaultyStore(self.world.store, decide)
        back_up(self.world.root(source), FaultyStore(self.repository, decide), at_once=1)
        return self.restored()

    def restored(self, wanted: RestorePoint | None = None) -> Root:
        target = self.world.another("restored")
        restore(self.repository, target, wanted, at_once=1, env=self.world.env())
        return self.world.root(target)

    def check(self, root: Root, least: int) -> None:
        """Check that the root works, with complete transactions, all acknowledged ones, and matching groups."""
        moves = {
            name: [value for _, value, _ in rows_of(root.topic(name)).values() if value and value.startswith(b"move")]
            for name in ("a", "b")
        }
        assert moves["a"] == moves["b"] == [b"move %d" % (i + 1) for i in range(len(moves["a"]))]
        assert least <= len(moves["a"]) <= self.moved
        committed = Groups(root).group("movers").committed()
        assert committed["a", 0].offset == len(moves["a"])
        for item in Groups(root).group("readers").committed().values():
            assert item.offset <= root.topic(item.topic).log.state().log_end[item.partition]
        source = contents(self.world.root())
        for name, rows in contents(root).items():
            assert all(source[name][place] == row for place, row in rows.items())
        before = contents(root)
        self.world.now_ms += DAY_MS
        self.world.retain(root.store)
        root = self.world.root(root.store)
        assert contents(root) == before
        assert not root.topic("a").log.state().open


@built_once
def begun() -> Story:
    """Return a story after its first steps."""
    return Story()


@pytest.fixture(autouse=True)
def long_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hours pass between two requests without expiring the marks of runs."""
    monkeypatch.setattr(place_module, "MARK_MS", 4 * DAY_MS)


def requests(make: Callable[[Callable[[Call], Fault | None]], object]) -> int:
    count = [0]

    def decide(call: Call) -> None:
        count[0] += 1

    make(decide)
    return count[0]


ACTS: dict[str, tuple[Callable[[Story], None], Callable[[Story], list[Callable[[], None]]]]] = {
    "move": (lambda story: None, lambda story: [story.move]),
    "move, all recorded": (Story.record, lambda story: [story.move]),
    "move and record": (lambda story: None, lambda story: [story.move, story.record]),
    "commit": (Story.begin, lambda story: [story.decide]),
    "commit, record and forget": (Story.begin, lambda story: [story.decide, story.record, story.give_up, story.record]),
    "tidy": (lambda story: None, lambda story: [story.move, story.tidy]),
}
"""The steps before a backup and the concurrent actions during the backup."""


def sweep(act: str, step: int = 1, start: int = 0) -> int:
    """Return the number of backups that were made and checked."""
    before, acts = ACTS[act]
    total = requests(begun().back_up)
    assert total > 40
    for moment in range(start, total, step):
        story = begun()
        before(story)
        story.check(story.back_up(story.at(lambda n, moment=moment: n == moment, *acts(story))), 2)
    return len(range(start, total, step))


@pytest.mark.parametrize("act", ACTS)
def test_backup_with_concurrent_actions_between_requests(act: str) -> None:
    with small_limits(backup_tries=1):
        assert sweep(act, 26, 4) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_backup_with_concurrent_actions_between_all_requests(act: str) -> None:
    with small_limits(backup_tries=1):
        assert sweep(act) > 100


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)])
def test_backup_with_continuous_actions(every: int) -> None:
    story = begun()
    decide = story.at(lambda n: n < 40 and n % every == 0, story.move)
    story.check(story.back_up(decide), 2)
    assert story.moved > 8
    story.check(story.back_up(story.at(lambda n: n < 30 and n % every == 0, story.move, story.record)), 8)


def dying(number: int) -> Callable[[Call], Fault | None]:
    """Crash the process at its request of this number."""
    seen = [0]

    def decide(call: Call) -> Fault | None:
        seen[0] += 1
        return Fault(FaultKind.CRASH_BEFORE) if seen[0] > number else None

    return decide


def killed(step: int, start: int = 0) -> int:
    """Return the number of backups that were killed and repeated."""
    total = requests(begun().back_up)
    for number in range(start, total, step):
        story = begun()
        with contextlib.suppress(Crash):
            story.back_up(dying(number))
        finished = [info.key for info in story.repository.list("_backups/0")]
        if finished:
            # The process crashed while it released its leases.
            assert contents(story.restored()) == contents(story.world.root())
            assert number > total - 20
        story.move()
        story.tidy()
        root = story.back_up()
        story.check(root, story.moved)
        assert contents(root) == contents(story.world.root())
        story.world.now_ms += DAY_MS + HOUR_MS
        story.world.retain()
        assert not story.world.topic("a").log.state().leases
    return len(range(start, total, step))


def test_backup_killed_at_any_request_can_be_repeated() -> None:
    assert killed(15) > 5


@pytest.mark.slow
def test_backup_killed_at_all_requests_can_be_repeated() -> None:
    assert killed(1) > 100


@pytest.mark.parametrize("step", thinned(6))
def test_restore_killed_at_any_request_can_be_repeated(step: int) -> None:
    story = begun()
    story.back_up()
    right = contents(story.world.root())

    def attempt(target: MemoryStore, decide: Callable[[Call], Fault | None]) -> None:
        restore(FaultyStore(story.repository, decide), FaultyStore(target, decide), at_once=1, env=story.world.env())

    total = requests(lambda decide: attempt(story.world.another("count"), decide))
    for number in range(0, total, step):
        target = story.world.another("restored")
        with contextlib.suppress(Crash):
            attempt(target, dying(number))
        if "_root.json" not in target.snapshot() or "_restore.json" in target.snapshot():
            attempt(target, lambda call: None)
        assert "_restore.json" not in target.snapshot()
        assert contents(story.world.root(target)) == right


def test_backup_exists_while_earlier_times_are_restored() -> None:
    story = begun()
    story.back_up()
    story.world.now_ms += 1
    times = []
    for _ in range(6):
        story.move()
        times.append((story.world.now_ms, story.moved))
        story.world.now_ms += 1
        story.record()
        story.world.now_ms += 1
    story.back_up()
    for time_ms, moved in times:
        root = story.restored(RestorePoint(time_ms=time_ms))
        moves = [value for _, value, _ in rows_of(root.topic("b")).values() if value and value.startswith(b"move")]
        assert len(moves) == moved
        story.check(root, moved)


@pytest.mark.usefixtures("records_in_files")
class TestMutations:
    """The sweeps must fail without a rule. Each test starts a few requests before the one that shows the error."""

    def test_fails_without_leases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backing_up.VersionLeases, "acquire", lambda self, heads: None)
        with small_limits(backup_tries=1), pytest.raises((AssertionError, SparklogError)):
            sweep("tidy", 1, 60)

    def test_fails_if_the_cut_is_not_completed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def as_read(self: consistent_cut._Cutter) -> consistent_cut.Cut:
            return consistent_cut.Cut(dict(self.topic_states), dict(self.decisions), dict(self.groups))

        monkeypatch.setattr(consistent_cut._Cutter, "complete", as_read)
        with pytest.raises((AssertionError, SparklogError)):
            sweep("move, all recorded", 1, 35)

    @pytest.mark.parametrize(
        ("rule", "act", "start"),
        [("_read_records", "commit, record and forget", 62), ("note_decisions", "move, all recorded", 36)],
    )
    def test_fails_without_one_rule_of_the_cut(
        self, monkeypatch: pytest.MonkeyPatch, rule: str, act: str, start: int
    ) -> None:
        monkeypatch.setattr(consistent_cut._Cutter, rule, lambda *_: None)
        with pytest.raises((AssertionError, SparklogError)):
            sweep(act, 1, start)

    def test_fails_if_groups_are_read_after_topics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Groups are read last, without the rule for offsets."""
        now = consistent_cut.cut_now

        def late(root: Root, chosen: object = None) -> consistent_cut.Cut:
            found = now(root, None)
            groups = {
                name: consistent_cut.EntryChain(root.store, consistent_cut.GROUPS, name).latest()
                for name in found.groups
            }
            return consistent_cut.Cut(found.topics, found.decisions, groups)

        monkeypatch.setattr(backing_up, "cut_now", late)
        with pytest.raises((AssertionError, SparklogError)):
            sweep("move", 1, 78)

    def test_fails_if_the_manifest_is_written_before_the_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        copy = backing_up._BackupRun._copy_files
        late: list[Callable[[], object]] = []
        publish = backing_up._BackupRun._publish

        def skipped(self: backing_up._BackupRun, found: object) -> set[str]:
            late.append(lambda: copy(self, found))  # type: ignore[arg-type]
            return set()

        def first(self: backing_up._BackupRun, manifest: object) -> object:
            made = publish(self, manifest)  # type: ignore[arg-type]
            late.pop()()
            return made

        monkeypatch.setattr(backing_up._BackupRun, "_copy_files", skipped)
        monkeypatch.setattr(backing_up._BackupRun, "_publish", first)
        with pytest.raises((AssertionError, SparklogError)):
            killed(1, 155)


@pytest.mark.usefixtures("records_in_files")
def test_lease_below_the_floor_is_rejected_and_a_new_cut_is_taken() -> None:
    story = begun()
    story.back_up()
    taken: list[int] = []
    take = backing_up.VersionLeases.acquire

    def slow(self: backing_up.VersionLeases, heads: object) -> None:
        taken.append(1)
        if len(taken) == 1:
            for _ in range(3):
                story.tidy()
        take(self, heads)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backing_up.VersionLeases, "acquire", slow)
        root = story.back_up()
    assert len(taken) == 2
    assert contents(root) == contents(story.world.root())
    with pytest.raises(Conflict):
        maintain(story.world.topic("a"), leases={"late": backing_up.VersionLease(0)})


@pytest.mark.parametrize("kind", ["name_ms", "folder_ms"])
def test_backup_waits_for_an_object_that_a_cache_hides(kind: str) -> None:
    """The backup machine does not see that topic a has recorded a COMMIT which has been deleted from the decisions."""
    world = BackupWorld()
    root = world.root()
    for name in ("a", "b"):
        root.create_topic(name)
    here = world.root(NameCachingStore(world.store, lambda: world.now_ms, **{kind: 60_000}))
    writing = transactional(root, ID).begin()
    writing.append("a", batch([b"paid"]))
    writing.prepare()
    assert here.topic("a").log.state().open
    writing.commit()
    root.topic("a").append(batch([b"plain"]))
    with transactional(root, ID).begin() as following:
        following.append("b", batch([b"more"]))
    assert len(root.engine.decisions.log(ID).refresh().commits) == 1
    place, restored = world.another("place"), world.another("restored")
    begun = world.now_ms
    back_up(here, place)
    assert world.now_ms - begun <= SETTLE_MS
    restore(place, restored, env=world.env())
    assert contents(world.root(restored)) == contents(root)


def test_hidden_decision_is_not_treated_as_an_abort() -> None:
    """A mount hides the recorded outcome in a and the entries with the decision, but not the latest entry."""
    world = BackupWorld()
    root = world.root()
    for name in ("a", "b"):
        root.create_topic(name)
    log = root.engine.decisions.log(ID)
    writing = transactional(root, ID).begin()
    writing.append("a", batch([b"paid"]))
    writing.prepare()
    writing.commit()
    decided, version = log.refresh().number, root.topic("a").append(batch([b"plain"])).version
    with transactional(root, ID).begin() as following:
        following.append("b", batch([b"more"]))
    newest = log.refresh().number
    assert len(log.refresh().commits) == 1
    world.store.create(checkpoint_key(log.prefix, newest), world.store.get(log.key(newest)))
    hidden = {commit_key("a", version), *map(log.key, range(decided, newest))}
    here = world.root(HidingStore(world.store, hidden, world.env().sleep))
    world.now_ms += 2 * SETTLE_MS
    with pytest.raises(Unavailable, match=f"of '{ID}' may be committed"):
        back_up(here, world.another("place"))
    hidden.clear()
    place, restored = world.another("other"), world.another("restored")
    back_up(here, place)
    restore(place, restored, env=world.env())
    assert contents(world.root(restored)) == contents(root)
