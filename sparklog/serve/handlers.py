"""The function that answers each request, by the request's number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.apis import (
    api_versions,
    configs,
    fetch,
    group_admin,
    group_members,
    group_offsets,
    list_offsets,
    log_dirs,
    metadata,
    produce,
    producer_ids,
    sasl,
    topics,
)
from sparklog.serve.services import ServedRequest

Handler = Callable[[ServedRequest], Awaitable[Fields | None]]
"""Returns the fields of the response; None: the client waits for none."""

HANDLERS: Mapping[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    8: group_offsets.offset_commit,
    9: group_offsets.offset_fetch,
    10: group_admin.find_coordinator,
    11: group_members.join_group,
    12: group_members.heartbeat,
    13: group_members.leave_group,
    14: group_members.sync_group,
    15: group_admin.describe_groups,
    16: group_admin.list_groups,
    17: sasl.sasl_handshake,
    18: api_versions.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: topics.delete_records,
    22: producer_ids.init_producer_id,
    32: configs.describe_configs,
    35: log_dirs.describe_log_dirs,
    36: sasl.sasl_authenticate,
    37: topics.create_partitions,
    42: group_admin.delete_groups,
    44: topics.incremental_alter_configs,
    47: group_offsets.offset_delete,
    60: metadata.describe_cluster,
}
