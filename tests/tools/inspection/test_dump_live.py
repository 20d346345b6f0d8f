"""Lines compared with a run of Kafka's tool on files that are not fixtures: sparklog segments and odd contents."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions
from sparklog.errors import Corrupt
from sparklog.format.encode import EncodeOptions, encode
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.tools.inspection import dump_decoders
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_batches import LogOptions
from sparklog.tools.inspection.dump_index import IndexOptions
from sparklog.tools.inspection.dump_source import find
from tests.kafka_tools import KafkaTools
from tests.support.compaction import compact_topic

LINE_ENDS = b"\n\v\f\r\x1c\x1d\x1e\x85"
NOW_MS = 1_800_000_000_000
OPTIONS = {
    (): DumpOptions(),
    ("--deep-iteration", "--max-bytes", "3000"): DumpOptions(LogOptions(deep=True, max_bytes=3000)),
    ("--print-data-log",): DumpOptions(LogOptions(deep=True, contents=True)),
    ("--skip-record-metadata", "--value-decoder-class", "org.apache.kafka.tools.api.LongDecoder"): DumpOptions(
        LogOptions(deep=True, contents=True, metadata=False, decoders=dump_decoders.plain("string", "long"))
    ),
    ("--verify-index-only",): DumpOptions(index=IndexOptions(verify=True)),
    ("--index-sanity-check",): DumpOptions(index=IndexOptions(sanity=True)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create sealed and cleaned segments with their indexes, and a segment of odd records."""
    place = tmp_path_factory.mktemp("dump")
    configs = {"cleanup.policy": "compact", "segment.bytes": 20000, "index.interval.bytes": 500}
    topic = sparklog.open(place / "root", create=True).create_topic("t", configs=configs)
    rng = np.random.default_rng(3)
    for _ in range(40):
        number = rng.integers(0, 300, 50)
        keys = pa.array([f"key-{each}" for each in number.tolist()], pa.string()).cast(pa.binary())
        values = pa.array([None if each % 17 == 0 else b"%08d" % each * 9 for each in number.tolist()])
        topic.append(pa.table({"key": keys, "value": values}))
    compact_topic(topic, Settings(now_ms=NOW_MS), InProcess(), CompactOptions(roll=True))
    odd = place / "root" / "odd-0"
    odd.mkdir()
    # Line endings in contents are removed, because the output is compared line by line.
    payloads = [rng.bytes(int(size)).translate(None, LINE_ENDS) for size in rng.integers(0, 40, 300)]
    payloads += [bytes.fromhex(text) for text in ("eda080", "eda0", "ed", "eda041", "f4908080", "e28282", "c0af", "00")]
    values = pa.array(payloads, pa.binary())
    names = pa.array([[{"key": each.decode("latin-1"), "value": each}] for each in payloads[:-8]] + [None] * 8)
    times = np.arange(len(payloads)) * 7 - 1
    (odd / "00000000000000000000.log").write_bytes(
        encode(values, values, names, times, options=EncodeOptions(codec="lz4", batch_bytes=2000)).data + bytes(17)
    )
    return place


@pytest.mark.parametrize("arguments", OPTIONS, ids=lambda each: " ".join(each) or "shallow")
def test_lines_equal_those_of_kafkas_tool(kafka_tools: KafkaTools, folder: Path, arguments: tuple[str, ...]) -> None:
    names = [str(path) for path in sorted((folder / "root").rglob("0*.*")) if path.suffix in SUFFIXES]
    assert len(names) > 6
    if "--value-decoder-class" in arguments:
        names = [name for name in names if "odd-0" not in name]
    answer = kafka_tools.dump([Path(name) for name in names], *arguments)
    lines: dict[str, list[str]] = {}
    errors: list[str] = []
    for line in dump(find(names), OPTIONS[arguments]):
        if line.text.startswith("Dumping "):
            current = lines.setdefault(line.text.removeprefix("Dumping "), [])
        else:
            (errors if line.error else current).append(line.text)
    assert lines == answer.files
    # Kafka's tool prints the files of its findings in random order.
    assert sorted(errors) == sorted(answer.errors)


SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def test_dump_stops_at_undecodable_contents_like_kafka(kafka_tools: KafkaTools, folder: Path) -> None:
    odd = folder / "root" / "odd-0" / "00000000000000000000.log"
    answer = kafka_tools.dump([odd], "--value-decoder-class", "org.apache.kafka.tools.api.LongDecoder")
    assert any("BufferUnderflowException" in line for line in answer.errors)
    options = DumpOptions(LogOptions(deep=True, contents=True, decoders=dump_decoders.plain("string", "long")))
    theirs = answer.files[str(odd)]
    rest = dump(find([str(odd)]), options)
    # Kafka's tool prints the start of the line in which it fails.
    assert [line.text for line in islice(rest, len(theirs))][1:] == theirs[:-1]
    with pytest.raises(Corrupt, match="expected an integer of 8 bytes, found "):
        next(rest)
