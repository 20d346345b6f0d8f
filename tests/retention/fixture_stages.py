"""Segments of the fixtures for the retention rules, from Kafka's files, checked against the output of Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparklog.format.batch_scan import scan_headers
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from sparklog.retention.expiry_plan import Expiry, plan_expiry


def fixture(folder: Path) -> tuple[TopicConfigs, dict[str, dict[str, Any]]]:
    """Return configs and stages by name."""
    document = json.loads((folder / "fixture.json").read_text())
    configs = dict(document["configs"])
    if "internal.segment.bytes" in configs:
        configs["segment.bytes"] = configs.pop("internal.segment.bytes")
    return TopicConfigs.of(configs), {stage["stage"]: stage for stage in document["stages"]}


def segments(told: Sequence[Mapping[str, int]], log_end: int) -> list[Segment]:
    """Return segments from fixture.json; retention does not use `first_ts`."""
    bases = [item["baseOffset"] for item in told] + [log_end]
    return [
        Segment(
            partition=0,
            base=bases[row],
            next_base=bases[row + 1],
            end=bases[row + 1],
            first_row=row,
            rows=1,
            size=item["size"],
            first_ts=-1,
            max_ts=item["largestTimestamp"],
            sealed=row < len(told) - 1,
            active=row == len(told) - 1,
        )
        for row, item in enumerate(told)
    ]


def stage_segments(folder: Path, stage: Mapping[str, Any]) -> list[Segment]:
    """Return the same segments with the sizes and timestamps of the files of the stage."""
    (partition,) = (path for path in (folder / stage["stage"]).iterdir() if path.is_dir())
    told = []
    for log in sorted(partition.glob("*.log")):
        data = log.read_bytes()
        headers = scan_headers(data)
        largest = int(headers.max_timestamp.max()) if len(headers) else stage["segments"][-1]["largestTimestamp"]
        told.append({"baseOffset": int(log.stem), "size": len(data), "largestTimestamp": largest})
    seen = [{name: item[name] for name in told[0]} for item in stage["segments"]]
    assert told == seen, "the files are not what fixture.json tells"
    return segments(told, stage["logEndOffset"])


def expired(
    found: Sequence[Segment], stage: Mapping[str, Any], after: Mapping[str, Any], configs: TopicConfigs
) -> Expiry:
    """Apply retention to a stage at the time of Kafka's next stage."""
    return plan_expiry(
        found,
        partition=0,
        log_start=stage["logStartOffset"],
        log_end=stage["logEndOffset"],
        high_watermark=after["highWatermark"],
        configs=configs,
        now_ms=after["clockMs"],
    )
