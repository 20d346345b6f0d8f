"""Options of a consumer. The options have the names of Kafka's consumer configs, with underscores instead of dots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from sparklog.arguments import NAME, NAMES, NUMBER
from sparklog.common.settings import ValueType, int64, option, with_defaults
from sparklog.errors import BadRequest
from sparklog.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY
from sparklog.limits import MAX_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS
from sparklog.log.state.view import COLUMNS, IsolationLevel, check_columns

OffsetReset = Literal["earliest", "latest", "none"]
EARLIEST, LATEST, NONE = "earliest", "latest", "none"
TOPICS = ValueType("a name or a list of names", lambda value: NAME.accepts(value) or NAMES.accepts(value))
_STRATEGIES = ValueType(
    f"a list of {', '.join(ASSIGNORS)}",
    lambda value: NAMES.accepts(value) and len(value) > 0 and all(name in ASSIGNORS for name in value),
)


class ConsumerOptions(TypedDict, total=False):
    """The options of `sparklog.consumer`."""

    # fmt: off
    auto_offset_reset: Annotated[OffsetReset, option("latest",
        "Where to start if a partition has no committed offset, or if the committed offset is out of range. `none` "
        "raises `NotFound`.")]
    enable_auto_commit: Annotated[bool, option(True,
        "Whether to commit the positions automatically during `poll` and `close`.")]
    auto_commit_interval_ms: Annotated[int, option(5_000,
        "Minimum time in milliseconds between two automatic commits.", NUMBER)]
    isolation_level: Annotated[IsolationLevel, option("read_committed",
        "If set to `read_committed`, records of aborted transactions are skipped, and a partition is read only up to "
        "its first open transaction.")]
    session_timeout_ms: Annotated[int, option(SESSION_TIMEOUT_MS,
        "Time in milliseconds without a heartbeat after which a member is removed from its group.",
        int64(1, MAX_SESSION_TIMEOUT_MS))]
    heartbeat_interval_ms: Annotated[int, option(3_000,
        "Time in milliseconds between two heartbeats.", int64(1))]
    max_poll_interval_ms: Annotated[int, option(300_000,
        "Maximum time in milliseconds between two calls of `poll`. If it is exceeded, the consumer leaves its group.",
        int64(1))]
    max_poll_records: Annotated[int | None, option(None,
        "Maximum number of records that a call of `poll` returns. If None, `poll` returns all records of one read.",
        int64(1))]
    metadata_max_age_ms: Annotated[int, option(300_000,
        "Time in milliseconds between two checks for topics that match the subscribed pattern.", NUMBER)]
    consumer_timeout_ms: Annotated[int | None, option(None,
        "Time in milliseconds without records after which an iteration over the consumer ends. If None, the "
        "iteration never ends.", NUMBER)]
    columns: Annotated[Sequence[str], option(COLUMNS,
        "Columns of the record batches. Other columns are not decoded.", NAMES)]
    client_id: Annotated[str, option("sparklog-consumer",
        "Name of the program in listings of group members.")]
    group_instance_id: Annotated[str | None, option(None,
        "Id of a static member, which is retained across restarts. If None, the member is dynamic.")]
    partition_assignment_strategy: Annotated[Sequence[str], option((COOPERATIVE_STICKY,),
        "Assignors that the member supports. All members of a group must have at least one assignor in common.",
        _STRATEGIES)]
    # fmt: on


def consumer_options(given: ConsumerOptions) -> ConsumerOptions:
    """Return the options with their defaults. Raises `BadRequest` if the options contradict each other."""
    options = with_defaults(ConsumerOptions, given)
    check_columns(options["columns"])
    if options["heartbeat_interval_ms"] >= options["session_timeout_ms"]:
        raise BadRequest(
            f"heartbeat_interval_ms must be lower than session_timeout_ms, found {options['heartbeat_interval_ms']} "
            f"and {options['session_timeout_ms']}"
        )
    return options
