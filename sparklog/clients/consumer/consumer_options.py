"""Options of a consumer, by the names that Kafka's consumers have, with underscores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from sparklog.arguments import NAME, NAMES, NUMBER, ArgumentKind, instance, whole
from sparklog.errors import BadRequest
from sparklog.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY
from sparklog.groups.group_members import MAX_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS
from sparklog.log.read.read_plan import check_isolation
from sparklog.log.state.view import COLUMNS, IsolationLevel, check_columns

OffsetReset = Literal["earliest", "latest", "none"]
EARLIEST, LATEST, NONE = "earliest", "latest", "none"


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer: see `consumer`."""

    auto_offset_reset: OffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: IsolationLevel = "read_committed"
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int | None = None
    metadata_max_age_ms: int = 300_000
    consumer_timeout_ms: int | None = None
    columns: Sequence[str] = COLUMNS
    client_id: str = "sparklog-consumer"
    group_instance_id: str | None = None
    partition_assignment_strategy: Sequence[str] = (COOPERATIVE_STICKY,)

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in (EARLIEST, LATEST, NONE):
            raise BadRequest(f"auto_offset_reset is {EARLIEST}, {LATEST} or {NONE}, found {self.auto_offset_reset!r}")
        check_isolation(self.isolation_level)
        check_columns(self.columns)
        strategies = self.partition_assignment_strategy
        if not strategies or any(name not in ASSIGNORS for name in strategies):
            raise BadRequest(f"partition_assignment_strategy is a list of {', '.join(ASSIGNORS)}; found {strategies!r}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise BadRequest(
                f"heartbeat_interval_ms is lower than session_timeout_ms, found {self.heartbeat_interval_ms} and "
                f"{self.session_timeout_ms}"
            )


class ConsumerKeywords(TypedDict, total=False):
    """The fields of `ConsumerOptions`, as keyword arguments."""

    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int | None
    metadata_max_age_ms: int
    consumer_timeout_ms: int | None
    columns: Sequence[str]
    client_id: str
    group_instance_id: str | None
    partition_assignment_strategy: Sequence[str]


TOPICS = ArgumentKind("a name or a list of names", lambda value: NAME.accepts(value) or NAMES.accepts(value))
KINDS = {
    "enable_auto_commit": instance("True or False", bool),
    "auto_commit_interval_ms": NUMBER,
    "session_timeout_ms": whole(1, MAX_SESSION_TIMEOUT_MS),
    "heartbeat_interval_ms": whole(1),
    "max_poll_interval_ms": whole(1),
    "max_poll_records": whole(1).or_none(),
    "metadata_max_age_ms": NUMBER,
    "consumer_timeout_ms": NUMBER.or_none(),
    "client_id": NAME,
    "group_instance_id": NAME.or_none(),
    "partition_assignment_strategy": NAMES,
}
"""What values of options must be, for `checked`."""
