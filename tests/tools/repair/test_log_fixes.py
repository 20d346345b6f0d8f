"""Documents, the keys that contain documents, and repairs by the checksum of a document."""

from __future__ import annotations

import pytest

from sparklog.log.journal.names import ROOT_KEY, checkpoint_key, commit_key
from sparklog.testing.world import World
from sparklog.tools.repair.log_fixes import decoder_for, fix_document, is_log_object, is_valid
from tests.tools.repair.small_root import small_root
from tests.tools.verification.damage import undone


@pytest.fixture(scope="module")
def world() -> World:
    return small_root()


def test_all_documents_of_a_root_are_valid(world: World) -> None:
    documents = [info.key for info in world.store.list("") if info.key.endswith(".json")]
    assert all(is_log_object(key) and is_valid(key, world.store.get(key)) for key in documents)
    assert decoder_for("latest/append/x.slices") is None
    assert not is_log_object("latest/append/x.slices")
    assert not is_valid(commit_key("latest", 2), world.store.get(commit_key("latest", 1)))
    assert not is_valid(commit_key("_groups/other", 0), world.store.get(commit_key("_groups/g", 0)))


@pytest.mark.parametrize("key", [ROOT_KEY, commit_key("small", 1), checkpoint_key("_groups/g", 2)])
def test_document_with_a_damaged_end_is_repaired(world: World, key: str) -> None:
    data = world.store.get(key)
    end = data.index(b"\n")
    for position in range(end - 16, end + 1):
        with undone(world):
            world.store.replace(key, data[:position] + bytes([data[position] ^ 2]) + data[position + 1 :])
            fix = fix_document(world.store, key)
            assert fix is not None, position
            assert fix.patched(0, bytes(fix.size or 0)) == data
    assert fix_document(world.store, key) is None, "it is whole"
