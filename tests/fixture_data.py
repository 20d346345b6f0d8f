"""Reading the fixtures: what Kafka's own consumer, admin client and tools said, as Python values.

The layout is described in the tree's README.md. Expectations of a stage called `data` lie in `expected/`, those of
another stage in `expected/<stage>/`.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fixture_archive import unpacked

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


@dataclass(frozen=True, slots=True)
class ExpectedRecord:
    """One record as Kafka's consumer returned it; `timestamp` in ms, `timestamp_type` as in `TIMESTAMP_TYPES`."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int | None


@cache
def fixture_tree() -> Path:
    """The tree: `SPARKLOG_FIXTURES` if set, else the repository's archive, unpacked once per machine."""
    given = os.environ.get("SPARKLOG_FIXTURES")
    return Path(given) if given else unpacked()


def expected_folder(fixture: Path, stage: str = "data") -> Path:
    """Where a stage's expectations lie."""
    return fixture / "expected" if stage == "data" else fixture / "expected" / stage


def expected_name(partition: str) -> str:
    """A partition folder's name as the expected files spell it (long ones are shortened)."""
    return partition if len(partition) < 180 else f"{partition[:60]}...{partition[-12:]}"


def expected_records(
    fixture: Path, partition: str, isolation: str = "read_uncommitted", stage: str = "data"
) -> list[ExpectedRecord]:
    """All records of a partition folder (`<topic>-<n>`), as a Java consumer of this isolation level reads them."""
    kind = "committed" if isolation == "read_committed" else "uncommitted"
    file = expected_folder(fixture, stage) / f"{expected_name(partition)}.{kind}.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [_record(json.loads(line)) for line in lines]


def expected_offsets(fixture: Path, stage: str = "data") -> dict[str, dict[str, Any]]:
    """`offsets.json`: partition folder name -> bounds, `offsetsForTimes`, `maxTimestamp` (README, "Expected files")."""
    found: dict[str, dict[str, Any]] = json.loads((expected_folder(fixture, stage) / "offsets.json").read_text())
    return found


def expected_dump(fixture: Path, partition: str, file: str, stage: str = "data") -> str:
    """What DumpLogSegments printed for one file of a partition."""
    name = f"{expected_name(partition)}.{file}.dump.txt.gz"
    with gzip.open(expected_folder(fixture, stage) / name, "rt", encoding="utf-8") as text:
        return text.read()


def partitions(log_dir: Path) -> list[str]:
    """Names of the partition folders of a log dir, sorted."""
    return sorted(path.name for path in log_dir.iterdir() if path.is_dir())


def split_partition(name: str) -> tuple[str, int]:
    """`<topic>-<n>` -> (topic, n): split at the last dash."""
    topic, number = name.rsplit("-", 1)
    return topic, int(number)


def copied(source: Path, target: Path) -> Path:
    """A copy to change, modification times kept."""
    shutil.copytree(source, target, copy_function=shutil.copy2)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def _record(line: dict[str, Any]) -> ExpectedRecord:
    return ExpectedRecord(
        partition=line["partition"],
        offset=line["offset"],
        timestamp=line["timestamp"],
        timestamp_type=TIMESTAMP_TYPES[line["timestampType"]],
        key=_bytes(line["key"]),
        value=_bytes(line["value"]),
        headers=tuple((name, _bytes(value)) for name, value in line["headers"]),
        leader_epoch=line["leaderEpoch"],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
