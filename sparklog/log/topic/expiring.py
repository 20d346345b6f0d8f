"""Warnings about records that expire. Retention uses record timestamps, so old records expire immediately.

The warnings are based on the timestamps and record counts of slices. They do not affect what is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from sparklog.common.times import seconds_warning, span
from sparklog.common.warned import is_first_warning
from sparklog.log.state.configs import DEFAULT_CONFIG, TopicConfigs, canonical
from sparklog.log.state.slices import FileSlices

CREATED_ROOT = logging.getLogger("sparklog.created.root")
CREATED_TOPIC = logging.getLogger("sparklog.created.topic")
"""Loggers that log an INFO line for each root and each topic that this process creates."""
SEVEN_DAYS = (
    "records expire seven days after their timestamp, at the next sparklog retain (retention.ms=604800000,"
    " cleanup.policy={policy}); add --config retention.ms=-1 to keep them"
)
_LOG = logging.getLogger("sparklog.log")
HOUR_MS = 3_600_000


def default_expiry(configs: TopicConfigs) -> str | None:
    """Return a note which explains that records expire by default, or None if `retention.ms` is set or records do not
    expire.
    """
    if configs.source("retention.ms") != DEFAULT_CONFIG or not configs.is_deleting:
        return None
    return SEVEN_DAYS.format(policy=configs.text("cleanup.policy"))


def warn_of_short_retention(owner: str, changes: Mapping[str, object | None]) -> None:
    """Warn if `retention.ms` is below one hour, because another unit was probably meant.

    Warns once per owner and value.
    """
    value = changes.get("retention.ms", changes.get("log.retention.ms"))
    if value is None or not 0 <= (period_ms := int(canonical("retention.ms", value))) < HOUR_MS:
        return
    if is_first_warning("short retention", owner, str(value)):
        _LOG.warning(
            "%s: retention.ms=%s is in milliseconds: records expire %s after their timestamp, at the next"
            " sparklog retain; a day is 86400000",
            *(owner, value, span(period_ms)),
        )


def count_older(files: Iterable[FileSlices], before_ms: int) -> tuple[int, bool]:
    """Count the records whose timestamp is before a time in milliseconds.

    Also return False if the count is only an upper bound.
    """
    count, exact = 0, True
    for file in files:
        for records, first, last in zip(file.records, file.min_ts, file.max_ts, strict=True):
            # The age of a slice without timestamps is based on its append time, which is stored in `max_ts`.
            if last >= 0 and (first if first >= 0 else last) < before_ms:
                count += records
                exact &= last < before_ms
    return count, exact


def _warn_of_seconds(root_id: str, topic: str, files: Iterable[FileSlices]) -> None:
    """Warn if a record timestamp looks like seconds. Warns once per topic in this process."""
    for time_ms in sorted({time_ms for file in files for time_ms in (*file.min_ts, *file.max_ts)}):
        warning = seconds_warning(f"a timestamp appended to topic {topic}", time_ms)
        if warning is not None:
            if is_first_warning("timestamps in seconds", root_id, topic):
                _LOG.warning("%s", warning)
            return


def warn_of_times(root_id: str, topic: str, configs: TopicConfigs, files: Iterable[FileSlices], now_ms: int) -> None:
    """Warn about appended records that the next retain will delete, or whose timestamps look like seconds."""
    if configs.is_deleting and configs.retention_ms >= 0:
        _warn_of_older(root_id, topic, configs, files, now_ms - configs.retention_ms)
    _warn_of_seconds(root_id, topic, files)


def _warn_of_older(
    root_id: str, topic: str, configs: TopicConfigs, files: Iterable[FileSlices], before_ms: int
) -> None:
    """Warn about records older than `before_ms`. Warns once per topic in this process."""
    count, exact = count_older(files, before_ms)
    if not count or not is_first_warning("expired records", root_id, topic):
        return
    how_many = f"{count} records are" if count > 1 else "a record is"
    _LOG.warning(
        "topic %s: %s%s older than retention.ms=%d and may be deleted by the next sparklog retain; to keep them, run "
        "sparklog configs alter %s --add-config retention.ms=-1",
        *(topic, "" if exact else "up to ", how_many, configs.retention_ms, topic),
    )
