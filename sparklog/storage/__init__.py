"""Object stores: the base class `Store`, the store of a local directory, and `open_store`, which opens the store of a
location.
"""

from __future__ import annotations

import logging
import os

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest
from sparklog.storage.cloud_settings import HDFS
from sparklog.storage.local import LocalStore
from sparklog.storage.locations import is_url, local_path, parse_url, refuse_scheme
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store

__all__ = ["LocalStore", "ObjectInfo", "ObjectWriter", "Store", "local_path", "open_store", "refuse_scheme"]

_REQUESTS = logging.getLogger("sparklog.requests")


def open_store(location: str | os.PathLike[str]) -> Store:
    """Return the store of a location (`sparklog.storage.locations`), which does not have to exist.

    If the level of the logger `sparklog.requests` is DEBUG, the store logs its requests. Raises `BadRequest` if the
    location is a file, or if no store supports it.
    """
    if is_url(location):
        store = _store_of_url(os.fspath(location))
    else:
        path = local_path(location)
        if os.path.exists(path) and not os.path.isdir(path):
            raise BadRequest(f"{path} is a file; expected a directory")
        store = LocalStore(path)
    if _REQUESTS.isEnabledFor(logging.DEBUG):
        from sparklog.storage.request_log import log_requests

        log_requests(store)
    return store


def _store_of_url(location: str) -> Store:
    url = parse_url(location)
    try:
        if url.scheme == HDFS:
            from sparklog.storage.hdfs_store import HdfsStore

            return HdfsStore(str(url))
        from sparklog.storage.object_store import ObjectStore
    except ImportError:
        library, extra = ("hdfs-native", "hdfs") if url.scheme == HDFS else ("obstore", "cloud")
        raise BadRequest(f"{url.scheme}:// locations require {library}: {install_command(extra)}") from None
    return ObjectStore(str(url))
