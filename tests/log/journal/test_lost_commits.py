"""A store violates its guarantee after the probe: the error of its next writer, the note in the root, verify."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.format import crc32c
from sparklog.groups.lag import Groups
from sparklog.log.decisions.decision import BY_OWNER
from sparklog.log.journal import probe_results
from sparklog.log.journal.documents import encode, peek_commit_id
from sparklog.log.journal.names import commit_key
from sparklog.log.journal.numbered_objects import CreateResult, Expected, NumberedObjects
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import HOUR_MS, World
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from sparklog.tools.verification.findings import CHAIN, GUARANTEE, Finding
from sparklog.tools.verification.run import verify_root

LIES = r"does not create objects exclusively: .*sparklog verify.*expected 1"
ROWS = pa.table({"value": [b"x"]})
PREFIXES = {"topic": "a", "group": "_groups/g", "decisions": "_transactions/job"}
_offsets = count()


class Writer:
    """A long-running process."""

    def __init__(self, log: str, root: Root) -> None:
        self.topic, self.group, self.decisions = (
            root.topic("a"),
            Groups(root).group("g"),
            root.engine.decisions.log("job"),
        )
        self.journal: Any = (
            {"topic": self.topic, "group": self.group}[log].log if log != "decisions" else self.decisions
        )
        self.log = log

    def __call__(self) -> None:
        """Write one more commit."""
        if self.log == "topic":
            self.topic.append(ROWS)
        elif self.log == "group":
            self.group.alter({"a": {0: next(_offsets)}})
        else:
            self.decisions.abort(self.decisions.current().newest + 1, BY_OWNER)


class Replaced(MemoryStore):
    """A server that respects the condition of a create, until another server replaces it."""

    needs_probe = True
    last_wins: bool | None = None

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if not created and self.last_wins is not None:
            if self.last_wins:
                self.replace(key, data)
            return True
        return created


class Case:
    """Two processes that write to one log. Both were told that they had created `key`, and `loser` has lost."""

    def __init__(self, log: str, last_wins: bool) -> None:
        self.world = World()
        self.store = self.world.store = Replaced(self.world.clock)
        self.log = log
        self.world.root().create_topic("a")
        hooked = HookedStore(self.store)
        first, second = Writer(log, self.world.root()), Writer(log, open_root(hooked, env=self.world.env()))
        first()
        second.journal.refresh()
        self.key = commit_key(PREFIXES[log], len(self.numbers()))
        self.store.last_wins = last_wins
        hooked.before_next("create:commit", first)
        second()
        self.loser, self.winner = (first, second) if last_wins else (second, first)

    def numbers(self) -> list[str]:
        return [info.key for info in self.store.list(f"{PREFIXES[self.log]}/_log/0")]

    def promises(self, *topics: str) -> list[Finding]:
        findings = verify_root(self.store, topics=topics, env=self.world.env()).findings
        return [each for each in findings if each.kind == GUARANTEE]


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_probed", "_reverified"):
        monkeypatch.setattr(probe_results, name, {})


@pytest.mark.parametrize("log", PREFIXES)
@pytest.mark.parametrize("last_wins", [False, True])
def test_a_writer_that_continues_after_a_lost_commit_is_fenced_and_verify_reports_it(log: str, last_wins: bool) -> None:
    case = Case(log, last_wins)
    kept = case.numbers()
    assert kept[-1] == case.key
    assert case.promises() == []
    with pytest.raises(Fenced, match=LIES) as caught:
        case.loser()
    assert case.numbers() == kept, "what it tried to add was withdrawn"
    assert (
        f"{case.key} in memory:test differs from the object that this process has read, which created commit "
        in str(caught.value)
    )
    (finding,) = case.promises()
    assert finding.file == case.key
    lost_id = finding.message.split()[1]
    assert lost_id in str(caught.value)
    assert lost_id != peek_commit_id(case.store.get(case.key))
    assert [bool(case.promises("a"))] == [log == "topic"]
    for write in (case.loser, case.winner) if log == "topic" else (case.loser,):
        with pytest.raises(SparklogError, match="expected 1"):
            write()
    with pytest.raises(BadRequest, match="expected 1"):
        open_root(case.store, env=case.world.env()).engine.ensure_probed()
    note = finding.remedy.rpartition(" ")[2]
    case.store.delete(note)
    assert case.promises() == []


@pytest.mark.parametrize("log", PREFIXES)
def test_the_error_names_both_causes_if_the_store_passes_again(log: str) -> None:
    """The root may have been restored. The error reports both causes, and no note is written."""
    case = Case(log, True)
    case.store.last_wins = None
    for _ in range(2):
        with pytest.raises(
            Fenced, match=r"which created commit \S+ there: the root was moved away .*; stop this proc"
        ) as e:
            case.loser()
        assert "or the store does not create objects exclusively, which you can test with sparklog doctor" in str(
            e.value
        )
    assert case.promises() == []
    case.winner()


@pytest.mark.parametrize("log", PREFIXES)
@pytest.mark.parametrize("hours", [0, 2])
def test_a_process_that_reads_forward_fails_after_a_contradiction(log: str, hours: int) -> None:
    """It reads an entry after the other commit, or opens the log again after an hour."""
    case = Case(log, True)
    case.store.last_wins = None
    case.winner()
    case.world.advance(hours * HOUR_MS)
    with pytest.raises(Fenced, match=r"which created commit .*does not create objects exclusively"):
        case.loser.journal.refresh()


def test_a_second_thread_that_creates_the_same_number_is_fenced() -> None:
    world = World()
    store = Replaced(world.clock)
    root = open_root(store, create=True, env=world.env())
    numbered = NumberedObjects(store, "x", root.env, root.id)
    store.last_wins = False
    basis = Expected(root.env.now(), None)
    assert numbered.create(0, b'{"commitId":"one"}', "one", basis)[0] is CreateResult.CREATED
    with pytest.raises(Fenced, match=LIES):
        numbered.create(0, b'{"commitId":"two"}', "two", basis)


def test_a_broken_chain_discards_the_probe_result_and_readers_do_not_probe() -> None:
    case = Case("topic", False)
    case.store.last_wins = None
    stranger = open_root(case.store, env=case.world.env())
    stranger.engine.ensure_probed()
    assert len(list(case.store.list("_probe/verdict-"))) == 1
    # The loser was stopped between its create and its check of the previous entry.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumberedObjects, "_confirm", lambda *given: given[1])
        case.loser()
    counting = CountingStore(case.store)
    with pytest.raises(
        Corrupt, match=r"the chain of commits is broken: .*, or the store does not create objects exclusively"
    ):
        open_root(counting, env=case.world.env()).topic("a").scan()
    assert (counting.counts["create"], counting.counts["delete"]) == (0, 1)
    assert list(case.store.list("_probe/verdict-")) == []
    (finding,) = [each for each in verify_root(case.store, env=case.world.env()).findings if each.kind == CHAIN]
    assert "the store let two writers create it; check the store with sparklog doctor" in finding.remedy
    case.store.last_wins = True
    with pytest.raises(BadRequest, match="expected 1"):
        stranger.engine.ensure_probed()


def test_an_entry_that_a_cache_hides_is_not_withdrawn() -> None:
    """Another process created the entry, and may have continued."""
    world = World()
    reads: Counter[str] = Counter()

    def hide(verb: str, key: str) -> None:
        """Hide a name from its second read on, like a name cache."""
        reads[key] += verb == "get"
        if verb == "get" and key == winner.key(1) and reads[key] > 1:
            raise NotFound(f"{key} is hidden")

    store = HookedStore(world.store)
    root = open_root(store, create=True, env=world.env())
    names = ("zero", "one", "other")
    zero, one, other = (encode({"format": 1, "readFeatures": [], "commitId": name}) for name in names)
    winner = NumberedObjects(store, "x", root.env, root.id)
    winner.create(0, zero, "zero", Expected(root.env.now(), None))
    winner.create(1, one, "one", Expected(root.env.now(), None))
    store.before = hide
    outlived = NumberedObjects(store, "x", root.env, root.id)
    with pytest.raises(Unavailable, match="it is listed but cannot be read; delete x/"):
        outlived.create(1, other, "other", Expected(root.env.now(), 7))
    store.before = None
    assert store.get(winner.key(1)) == one


@pytest.mark.parametrize("looks", [False, True])
def test_entries_read_after_an_entry_require_that_it_still_exists(looks: bool) -> None:
    """Entry 1 was created after a different entry 0, by a process that outlived its root and will withdraw it."""
    world = World()
    store = MemoryStore(world.clock)
    root = open_root(store, create=True, env=world.env())
    before, here, outlived, ours = (
        encode({"format": 1, "readFeatures": [], "commitId": name}) for name in ("before", "here", "outlived", "ours")
    )
    numbered = NumberedObjects(store, "x", root.env, root.id)
    for number, data in enumerate((here, outlived)):
        store.create(numbered.key(number), data)
    earlier = (0, crc32c.crc32c(before)) if looks else None
    basis = Expected(root.env.now(), crc32c.crc32c(outlived), earlier=earlier)
    if looks:
        with pytest.raises(Fenced, match=r"00\.json in memory:test differs from .* was withdrawn"):
            numbered.create(2, ours, "ours", basis)
    else:
        assert numbered.create(2, ours, "ours", basis)[0] is CreateResult.CREATED
    assert (numbered.read(2) is None) == looks
