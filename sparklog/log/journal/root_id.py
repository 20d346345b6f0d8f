"""`_root.json`: the random id of a root, created once; by it a task knows that it writes to the driver's root."""

from __future__ import annotations

from sparklog.errors import BadRequest, NotFound
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.documents import FORMAT
from sparklog.log.journal.env import Env
from sparklog.log.journal.foreign_content import refuse_foreign
from sparklog.log.journal.names import PLACE_KEY, RESTORE_KEY, ROOT_KEY
from sparklog.storage.store import Store

ROOT_FIELDS = ("format", "readFeatures", "rootId", "createdMs", "crc")


def read_root_id(store: Store) -> str:
    """The id of the root in this store (one request). `NotFound` if there is none."""
    try:
        data = store.get(ROOT_KEY)
    except NotFound:
        raise NotFound(
            f"{store.location} is no sparklog root: it has no {ROOT_KEY}; create one or check the path"
        ) from None
    return json_fields.decode(data, ROOT_KEY, "root").text("rootId")


def create_root_id(store: Store, env: Env) -> str:
    """Make this store a root, once it has proved that it can hold one; the id of whoever was first.

    `BadRequest` if backups lie here, half of what a restore brings back, or anything else.
    """
    from sparklog.storage.probe import ensure_probed

    if store.stat(PLACE_KEY) is not None:
        raise BadRequest(f"backups lie in {store.location}, which can be no root; restore them into another folder")
    if store.stat(RESTORE_KEY) is not None:
        raise BadRequest(f"a restore into {store.location} is unfinished: run it again, or choose another folder")
    refuse_foreign(store)
    ensure_probed(store)
    root_id = env.new_id()
    document = {"format": FORMAT, "readFeatures": [], "rootId": root_id, "createdMs": env.wall_ms()}
    if store.create(ROOT_KEY, json_fields.encode(document)):
        return root_id
    return read_root_id(store)
