"""The read-only reader of a journal: spans, states by time, and missing, damaged or foreign entries."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.groups.group import Group
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.journal.chain import EntryChain, id_in, ids_of, list_numbers
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.testing.world import World


def chain_of(entries: int, name: str = "g") -> EntryChain[GroupState]:
    """Return a group with this number of entries, one per second."""
    world = World()
    root = world.root()
    topic = root.create_topic("t")
    topic.append(pa.table({"value": [b"x"] * entries}))
    member = Group(root, name).join("m")
    for offset in range(1, entries):
        world.advance(seconds=1)
        member.commit({"t": {0: offset}})
    return EntryChain(root.store, GROUPS, name)


def test_walk_yields_the_states_up_to_the_latest_entry() -> None:
    chain = chain_of(4)
    span = chain.span()
    assert (span.first, span.last) == (0, 3)
    assert [state.number for state in chain.walk(chain.existing(-1), 3)] == [0, 1, 2, 3]
    assert chain.latest().number == 3
    assert (ids_of(chain.store, GROUPS), id_in(chain.store, GROUPS, "nothing")) == (["g"], None)


def test_span_returns_the_states_up_to_a_time() -> None:
    span = chain_of(3).span()
    last = span.chain.existing(2)
    assert span.number_by(last.created_ms) == 2
    assert [state.number for state in span.states_by(last.created_ms)] == [0, 1, 2]
    assert (span.number_by(-1), span.states_by(-1), span.first_after(-1)) == (-1, [], None)


def test_a_deleted_entry_below_a_checkpoint_is_not_a_gap() -> None:
    chain = chain_of(4)
    chain.store.delete(commit_key(chain.prefix, 1))
    with pytest.raises(Corrupt, match="entry 1 of the log is missing, although entries 2 to 3 exist"):
        chain.span()
    # Below a checkpoint, the entry may be deleted.
    chain.store.create(checkpoint_key(chain.prefix, 2), chain.store.get(commit_key(chain.prefix, 2)))
    span = chain.span()
    assert (span.first, span.last) == (2, 3)
    assert span.number_by(-1) == 2
    first = span.first_after(-1)
    assert first is not None
    assert first.number == 2
    with pytest.raises(NotFound, match="entry 1 of group 'g' has been deleted"):
        chain.existing(1)


def test_chain_reads_a_checkpoint_instead_of_a_deleted_entry() -> None:
    chain = chain_of(3)
    key = commit_key(chain.prefix, 1)
    chain.store.create(checkpoint_key(chain.prefix, 1), chain.store.get(key))
    chain.store.delete(key)
    numbers = list_numbers(chain.store, chain.prefix)
    assert (numbers.entries, numbers.copies) == ((0, 2), (1,))
    assert [state.number for state in chain.walk(chain.existing(0), 2)] == [1, 2]


def test_an_entry_of_another_id_is_rejected() -> None:
    chain, other = chain_of(2), chain_of(2, "other")
    key = commit_key(chain.prefix, 0)
    chain.store.delete(key)
    chain.store.create(key, other.store.get(commit_key(other.prefix, 0)))
    with pytest.raises(Corrupt, match=r"expected .*, found"):
        chain.read(0)
    chain.store.delete(key)
    chain.store.create(key, b"{}")
    with pytest.raises(Corrupt):
        chain.read(0)
