"""Another root id in place of the one that lies in a store, as a restore or a new root at the same path leaves it."""

from __future__ import annotations

from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import ROOT_JSON, ROOT_KEY, RootId
from sparklog.storage.store import Store


def replace_root_id(store: Store, env: Env) -> None:
    """Give the root another id; its files stay."""
    store.delete(ROOT_KEY)
    assert store.create(ROOT_KEY, ROOT_JSON.encode(RootId(env.new_id(), env.wall_ms())))
