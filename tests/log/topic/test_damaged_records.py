"""Damaged inline records: the topic remains usable, and only readers of these offsets get an error."""

from __future__ import annotations

import pytest

from sparklog.errors import Corrupt
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.names import commit_key
from sparklog.log.state.commit_object import decode_commit
from sparklog.testing.world import World
from sparklog.tools.verification.run import verify_root
from tests.log.topic.test_inline_records import inline_topic, rows


@pytest.fixture
def world() -> World:
    return World(sleep_takes_time=True)


def damage(world: World, version: int, cut: int = 0) -> str:
    """Damage the records in a commit: change one byte, or truncate the records."""
    key = commit_key("t", version)
    data = bytearray(world.store.get(key))
    data[len(document_of(bytes(data))) + 70] ^= 0x55
    world.store.replace(key, bytes(data[: len(data) - cut]))
    return key


@pytest.mark.parametrize("cut", [0, 1, 40])
@pytest.mark.parametrize("version", [2, 3])
def test_readers_and_writers_continue_and_lost_offsets_are_one_error(world: World, version: int, cut: int) -> None:
    topic = inline_topic(world)
    for first in (0, 4, 8):
        topic.append(rows(4, first))
    written = decode_commit(world.store.get(commit_key("t", version)), commit_key("t", version), version)
    key = damage(world, version, cut)
    assert decode_commit(world.store.get(key), key, version, check_sections=False).crc == written.crc

    fresh = world.topic("t")
    assert fresh.log.state().version == 3
    low = (version - 1) * 4
    lost = [f"value {number}".encode() for number in range(low, low + 4)]
    with pytest.raises(Corrupt) as error:
        fresh.scan(columns=["value"]).to_table()
    assert error.value.file == key
    assert fresh.append(rows(2, 12)).version == 4
    again = world.topic("t")
    offsets = {0: (version - 1) * 2, 1: (version - 1) * 2}
    before = again.scan(start="earliest", end=offsets, columns=["value"]).to_table()["value"].to_pylist()
    after = again.scan(start={part: offset + 2 for part, offset in offsets.items()}, columns=["value"])
    read = [*before, *after.to_table()["value"].to_pylist()]
    assert sorted([*read, *lost]) == sorted(f"value {number}".encode() for number in range(14))
    assert {finding.file for finding in verify_root(world.store, env=world.env()).findings} == {key}
