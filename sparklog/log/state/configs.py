"""A topic's configs: what was set on it over the defaults of `sparklog.log.state.config_table`.

A topic stores only what was set on it, as canonical text; everything else is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.errors import BadRequest
from sparklog.log.state.config_table import LONG_MAX, canonical, definition, policy

LEAST_DELETE_DELAY_MS = 3_600_000
"""Below this, `file.delete.delay.ms` needs force: jobs that planned before a rewrite would miss their files."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """A topic's configs: what was set on it (`explicit`, canonical text) over the defaults. Values come out typed."""

    explicit: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, object] | None) -> TopicConfigs:
        """From what a user gave; `BadRequest` for an unknown name, an invalid value or a contradiction."""
        configs = cls({name: canonical(name, value) for name, value in sorted((values or {}).items())})
        configs.check()
        return configs

    def changed(self, changes: Mapping[str, object | None]) -> TopicConfigs:
        """With these set (None: back to the default); checked as a whole."""
        merged: dict[str, str] = dict(self.explicit)
        for name, value in changes.items():
            if value is None:
                definition(name)
                merged.pop(name, None)
            else:
                merged[name] = canonical(name, value)
        configs = TopicConfigs(dict(sorted(merged.items())))
        configs.check()
        return configs

    def check(self) -> None:
        """Rules over several configs."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise BadRequest(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )

    def text(self, name: str) -> str:
        """The value as text, set or default."""
        return self.explicit.get(name, definition(name).default)

    def value(self, name: str) -> object:
        """The value as its type: int, float, bool, str, or a tuple for cleanup.policy."""
        return definition(name).parse(self.text(name))

    def integer(self, name: str) -> int:
        """The value of an int or long config."""
        return int(self.text(name))

    def source(self, name: str) -> str:
        """Return the source of the value: `topic` or `default`."""
        return "topic" if name in self.explicit else "default"

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        return policy(self.text("cleanup.policy"))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleting(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compression_type(self) -> str:
        return self.text("compression.type")

    @property
    def max_message_bytes(self) -> int:
        return self.integer("max.message.bytes")

    @property
    def log_append_time(self) -> bool:
        return self.text("message.timestamp.type") == "LogAppendTime"

    @property
    def timestamp_before_max_ms(self) -> int:
        return self._bound("message.timestamp.before.max.ms")

    @property
    def timestamp_after_max_ms(self) -> int:
        return self._bound("message.timestamp.after.max.ms")

    @property
    def index_interval_bytes(self) -> int:
        return self.integer("index.interval.bytes")

    @property
    def segment_bytes(self) -> int:
        return self.integer("segment.bytes")

    @property
    def retention_ms(self) -> int:
        return self.integer("retention.ms")

    @property
    def retention_bytes(self) -> int:
        return self.integer("retention.bytes")

    @property
    def file_delete_delay_ms(self) -> int:
        return self.integer("file.delete.delay.ms")

    @property
    def min_compaction_lag_ms(self) -> int:
        return self.integer("min.compaction.lag.ms")

    @property
    def max_compaction_lag_ms(self) -> int:
        return self.integer("max.compaction.lag.ms")

    def codec(self, option: str | None = None) -> str:
        """The codec to write with: a concrete topic codec wins, `producer` takes the writer's option (default zstd)."""
        if self.compression_type == "producer":
            return option or "zstd"
        return "none" if self.compression_type == "uncompressed" else self.compression_type

    def level(self, codec: str, option: int | None = None) -> int | None:
        """The compression level for `codec`: the writer's option, else the topic's; None where the codec has none."""
        if option is not None:
            return option
        return self.integer(f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None

    def _bound(self, name: str) -> int:
        value = self.integer(name)
        return self.integer("message.timestamp.difference.max.ms") if value == LONG_MAX else value


def check_delete_delay(changes: Mapping[str, object | None], force: bool) -> None:
    """`BadRequest` for a `file.delete.delay.ms` below one hour, unless forced."""
    value = changes.get("file.delete.delay.ms")
    if value is not None and not force and int(canonical("file.delete.delay.ms", value)) < LEAST_DELETE_DELAY_MS:
        raise BadRequest(
            f"file.delete.delay.ms below {LEAST_DELETE_DELAY_MS} (one hour) takes files away from "
            "jobs that planned to read "
            f"them, found {value}; raise it, or force it"
        )
