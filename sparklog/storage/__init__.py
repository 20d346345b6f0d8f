"""Stores of objects: the base class `Store`, and the store of a directory."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from sparklog.errors import BadRequest
from sparklog.storage.local import LocalStore
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store

__all__ = ["LocalStore", "ObjectInfo", "ObjectWriter", "Store", "local_path", "open_store", "refuse_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")


def local_path(location: str | os.PathLike[str]) -> str:
    """Return the absolute path that a path or `file:` URL (of Spark and Hadoop: `file:/a`, `file:///a`) names."""
    text = os.fspath(location)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            raise BadRequest("the location is empty; expected a path such as /data/logs or file:///data/logs")
        return os.path.abspath(text)
    refuse_scheme(text)
    path = text[scheme.end() :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise BadRequest(f"{text} names the host {host!r}; expected file:///<path> or a plain path")
        path = slash + rest
    if not path.startswith("/"):
        raise BadRequest(f"{text} is not absolute; expected file:///<path> or a plain path")
    return os.path.abspath(unquote(path))


def refuse_scheme(location: str) -> None:
    """Raise `BadRequest` for any scheme but `file:`, with or without slashes (`hdfs:/x`, `s3:x`)."""
    scheme = _SCHEME.match(location)
    if scheme is None or scheme.group(1).lower() == "file":
        return
    plain = "" if location.startswith("/", scheme.end()) else f"; a folder of that name is ./{location}"
    raise BadRequest(
        f"no store for {scheme.group(1)}: locations ({location}); expected a path or a file: URL, such as /data/log or "
        f"file:///data/log, on a disk that all machines mount{plain}"
    )


def open_store(location: str | os.PathLike[str]) -> Store:
    """Return the store of a directory, which need not exist yet. `BadRequest` if the location is a file."""
    path = local_path(location)
    if os.path.exists(path) and not os.path.isdir(path):
        raise BadRequest(f"{path} is a file; expected a directory")
    return LocalStore(path)
