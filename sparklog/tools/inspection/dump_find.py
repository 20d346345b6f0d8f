"""From what a person names to the files that are dumped: a file, a folder of files, or an object of a root."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparklog.errors import NotFound
from sparklog.storage import Store, open_store
from sparklog.tools.inspection.dump import is_known
from sparklog.tools.inspection.dump_source import Source

_ORDER = ("log", "index", "timeindex", "txnindex", "snapshot")
"""Of a segment's files."""


def find(paths: Sequence[str], root: str | None = None) -> list[Source]:
    """The files that paths name, in their order. A folder (a partition, a topic, a whole log directory or root) stands
    for all files below it that can be dumped, by folder and base offset. With `root`, paths are keys below it.

    `NotFound` for a path that is not there, and for a folder without such files.
    """
    found: list[Source] = []
    for path in paths:
        if root is not None:
            store, key = open_store(root), path.strip("/")
            shown = f"{root.rstrip('/')}/{key}"
        elif os.path.isdir(path):
            store, key, shown = open_store(path), "", path.rstrip("/") or "/"
        else:
            folder, key = os.path.split(path)
            if not key or not os.path.isdir(folder or "."):
                raise NotFound(f"there is no file or folder {path}")
            store, shown = open_store(folder or "."), path
        found += _named(store, key, shown)
    return found


def _named(store: Store, key: str, shown: str) -> list[Source]:
    if key and store.stat(key) is not None:
        return [_source(store, key, shown)]
    prefix = f"{key}/" if key else ""
    keys = [info.key for info in store.list(prefix)]
    if not keys and key:
        raise NotFound(f"there is no file or folder {shown}")
    known = sorted((each for each in keys if is_known(each.rpartition("/")[2])), key=_place)
    if not known:
        raise NotFound(f"{shown} holds no segments, indexes or commits: expected a partition, a topic or a file")
    return [_source(store, each, f"{shown}/{each.removeprefix(prefix)}") for each in known]


def _source(store: Store, key: str, shown: str) -> Source:
    return Source(store, key, shown, f"{store.location.rstrip('/')}/{key}")


def _place(key: str) -> tuple[str, str, int, str]:
    folder, _, name = key.rpartition("/")
    stem, _, suffix = name.partition(".")
    return folder, stem, _ORDER.index(suffix) if suffix in _ORDER else len(_ORDER), name
