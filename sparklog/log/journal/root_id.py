"""The id of a root (`_root.json`), and the check of a folder that is to become one.

`_root.json` has a random id, created once. By it a task knows that it writes to the driver's root.

Only an empty or new folder becomes a root by itself. A folder with other content belongs to another program, or was
mistyped: a root in it would mix topics with other files. Files that a fresh file system, a probe or a streaming query
brings along do not count:

* `lost+found`, `.snapshot`, `.DS_Store`, `.nfs...`: of file systems and the machines that look at them
* `_probe` and files that begin with `~`: of a store that is being tried
* `_checkpoint...`, or a folder with Spark's `metadata` and `offsets`: the checkpoint of the query that writes here
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sparklog.errors import BadRequest, NotFound
from sparklog.log.journal.documents import TEXT, Member, StoredDocument, whole
from sparklog.log.journal.env import Env
from sparklog.log.journal.names import LOG_FOLDER, PLACE_KEY, RESTORE_KEY, ROOT_KEY
from sparklog.storage import LocalStore
from sparklog.storage.probe import PROBE_FOLDER
from sparklog.storage.store import Store

_HARMLESS = re.compile(
    rf"lost\+found|\.snapshot|\.DS_Store|\.nfs[0-9a-f]+|{PROBE_FOLDER}|~[0-9a-f]{{24}}|_checkpoint[A-Za-z0-9._-]*"
)


def foreign_name(store: Store) -> str | None:
    """Return the name of a file or folder that keeps a store from becoming a root, None if there is none."""
    if isinstance(store, LocalStore):
        return next((name for name in store.names() if not _is_harmless(store.location, name)), None)
    keys = (info.key for info in store.list(""))
    return next((key for key in keys if _HARMLESS.fullmatch(key.partition("/")[0]) is None), None)


def refuse_foreign(store: Store) -> None:
    """Raise `BadRequest`, with the remedy, if the content of a store keeps it from becoming a root."""
    name = foreign_name(store)
    if name is None or _is_root(store):
        return
    folder = store.location
    raise BadRequest(f"{folder} is no sparklog root and not empty, found {name}: {_remedy(store, folder)}")


def _is_root(store: Store) -> bool:
    """True if another process has made it a root meanwhile, or a cache has hidden that."""
    return store.stat(ROOT_KEY) is not None or any(info.key == ROOT_KEY for info in store.list(ROOT_KEY))


def _is_harmless(folder: str, name: str) -> bool:
    if _HARMLESS.fullmatch(name) is not None:
        return True
    return all(os.path.exists(os.path.join(folder, name, part)) for part in ("metadata", "offsets"))


def _remedy(store: Store, folder: str) -> str:
    names = store.names() if isinstance(store, LocalStore) else []
    below = [os.path.join(folder, name) for name in names]
    root = next((path for path in below if os.path.isfile(os.path.join(path, ROOT_KEY))), None)
    if root is not None:
        return f"did you mean the root {root}? Else give an empty or new folder"
    if any(os.path.isdir(os.path.join(path, LOG_FOLDER)) for path in below):
        return f"topics lie there without {ROOT_KEY}: restore that file, or give an empty or new folder"
    if os.path.isfile(os.path.join(os.path.dirname(folder), ROOT_KEY)):
        return f"it lies in the root {os.path.dirname(folder)}: give that, or an empty or new folder"
    return f"give an empty or new folder, such as {os.path.join(folder, 'sparklog')}"


@dataclass(frozen=True, slots=True)
class RootId:
    """The id of a root, and when it was created."""

    root_id: str
    created_ms: int


ROOT_MEMBERS = (Member("rootId", TEXT), Member("createdMs", whole(0)))
ROOT_JSON = StoredDocument("root", RootId, *ROOT_MEMBERS)


def read_root_id(store: Store) -> str:
    """Return the id of the root in this store (one request). `NotFound` if there is none."""
    try:
        data = store.get(ROOT_KEY)
    except NotFound:
        raise NotFound(
            f"{store.location} is no sparklog root: it has no {ROOT_KEY}; create one or check the path"
        ) from None
    return ROOT_JSON.decode(data, ROOT_KEY).root_id


def create_root_id(store: Store, env: Env) -> str:
    """Make this store a root, after a probe that it can hold one; return the id of the first that did.

    `BadRequest` if backups, an unfinished restore or foreign files lie here.
    """
    from sparklog.storage.probe import ensure_probed

    if store.stat(PLACE_KEY) is not None:
        raise BadRequest(f"backups lie in {store.location}, which can be no root; restore them into another folder")
    if store.stat(RESTORE_KEY) is not None:
        raise BadRequest(f"a restore into {store.location} is unfinished: run it again, or choose another folder")
    refuse_foreign(store)
    ensure_probed(store)
    root_id = env.new_id()
    if store.create(ROOT_KEY, ROOT_JSON.encode(RootId(root_id, env.wall_ms()))):
        return root_id
    return read_root_id(store)
