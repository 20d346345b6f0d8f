"""The function that answers each request, by the request's number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.apis import api_versions, configs, fetch, list_offsets, log_dirs, metadata
from sparklog.serve.services import Request

Handler = Callable[[Request], Awaitable[Fields | None]]
"""Returns the fields of the response; None: the client waits for none."""

HANDLERS: Mapping[int, Handler] = {
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    18: api_versions.api_versions,
    32: configs.describe_configs,
    35: log_dirs.describe_log_dirs,
    60: metadata.describe_cluster,
}
