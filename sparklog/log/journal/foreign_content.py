"""What lies in a folder that is to become a root: only an empty or a new one becomes one by itself.

A folder that holds anything else is somebody else's, or was mistyped: a root in it would mix topics with other files.
What a fresh file system, a probe or a streaming query brings along does not count:

* `lost+found`, `.snapshot`, `.DS_Store`, `.nfs...`: of file systems and the machines that look at them
* `_probe` and files that begin with `~`: of a store that is being tried
* `_checkpoint...`, or a folder with Spark's `metadata` and `offsets`: the checkpoint of the query that writes here
"""

from __future__ import annotations

import os
import re

from sparklog.errors import BadRequest
from sparklog.log.journal.names import LOG_FOLDER, ROOT_KEY
from sparklog.storage import LocalStore
from sparklog.storage.probe import PROBE_FOLDER
from sparklog.storage.store import Store


_HARMLESS = re.compile(
    rf"lost\+found|\.snapshot|\.DS_Store|\.nfs[0-9a-f]+|{PROBE_FOLDER}|~[0-9a-f]{{24}}|_checkpoint[A-Za-z0-9._-]*"
)


def foreign_name(store: Store) -> str | None:
    """The name of something in a store that keeps it from becoming a root, None if there is nothing."""
    if isinstance(store, LocalStore):
        return next((name for name in store.names() if not _is_harmless(store.location, name)), None)
    keys = (info.key for info in store.list(""))
    return next((key for key in keys if _HARMLESS.fullmatch(key.partition("/")[0]) is None), None)


def refuse_foreign(store: Store) -> None:
    """`BadRequest` if a store cannot become a root for what lies in it, saying what can. Changes nothing."""
    name = foreign_name(store)
    if name is None or _is_root(store):
        return
    folder = store.location
    raise BadRequest(f"{folder} is no sparklog root and not empty, found {name}: {_remedy(store, folder)}")


def _is_root(store: Store) -> bool:
    """True if others have made it a root meanwhile, or a cache has hidden that: then what lies there is theirs."""
    return store.stat(ROOT_KEY) is not None or any(info.key == ROOT_KEY for info in store.list(ROOT_KEY))


def _is_harmless(folder: str, name: str) -> bool:
    if _HARMLESS.fullmatch(name) is not None:
        return True
    return all(os.path.exists(os.path.join(folder, name, part)) for part in ("metadata", "offsets"))


def _remedy(store: Store, folder: str) -> str:
    """What works instead."""
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
