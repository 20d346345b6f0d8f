"""Another root id in place of the one that lies in a store, as a restore or a new root at the same path leaves it."""

from __future__ import annotations

from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.documents import FORMAT
from sparklog.log.journal.env import Env
from sparklog.log.journal.names import ROOT_KEY
from sparklog.storage.store import Store


def replace_root_id(store: Store, env: Env) -> None:
    """Give the root another id; its files stay."""
    store.delete(ROOT_KEY)
    document = {"format": FORMAT, "readFeatures": [], "rootId": env.new_id(), "createdMs": env.wall_ms()}
    assert store.create(ROOT_KEY, json_fields.encode(document))
