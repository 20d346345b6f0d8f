"""`sparklog dump-log`: files, directories, options, and files that are not log files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog

LOG = "00000000000000000000.log"


@pytest.fixture
def folder(fixtures: Path) -> Path:
    return fixtures / "transactions" / "data" / "txn-a-0"


@pytest.fixture
def orders(root: Path) -> library.log.topic.Topic:
    topic = library.open(root, create=True).create_topic("orders", partitions=2)
    rows = {
        "key": [b"a", None, b"c"],
        "value": [b"\xff", b"12345678", None],
        "partition": pa.array([0, 1, 1], pa.int32()),
    }
    topic.append(pa.table(rows))
    return topic


def test_dump_prints_a_segment_with_and_without_records(sparklog: Sparklog, folder: Path) -> None:
    shallow = sparklog("dump-log", folder / LOG)
    assert shallow.lines[:2] == [f"Dumping {folder / LOG}", "Log starting offset: 0"]
    assert all(line.startswith("baseOffset: ") for line in shallow.lines[2:])
    deep = sparklog("dump-log", "--files", folder / LOG, "--deep-iteration").lines
    assert [line for line in deep if not line.startswith("|")] == shallow.lines
    assert "endTxnMarker: COMMIT" in "".join(deep)
    assert " payload: " not in "".join(deep)
    full = sparklog("dump-log", "--files", folder / LOG, "--print-data-log").lines
    assert sum(" payload: " in line for line in full) > 20
    some = sparklog("dump-log", folder / LOG, "--max-bytes", 1000).lines
    assert full[0] == some[0]
    assert 2 < len(some) < len(shallow.lines)


def test_a_directory_is_dumped_as_its_files_in_order(sparklog: Sparklog, folder: Path) -> None:
    names = [line.rpartition("/")[2] for line in sparklog("dump-log", folder).lines if line.startswith("Dumping ")]
    assert names[:4] == [LOG, *(LOG.replace("log", kind) for kind in ("index", "timeindex", "txnindex"))]
    assert names[4:] == ["00000000000000000075.snapshot", "leader-epoch-checkpoint", "partition.metadata"]
    everything = sparklog("dump-log", folder.parent).lines
    assert len([line for line in everything if line.startswith("Dumping ")]) > 30
    assert any(line.startswith("topic: txn-a partition: 0 offset: ") for line in everything)


@pytest.mark.usefixtures("records_in_files")
def test_decoders(sparklog: Sparklog, orders: library.log.topic.Topic, folder: Path) -> None:
    file = next(Path(orders.store.location).rglob("*.slices"))
    lines = sparklog("dump-log", file, "--key-decoder", "bytes-hex", "--value-decoder-class", "bytes-base64").lines
    assert [line.partition(" headerKeys: [] ")[2] for line in lines if line.startswith("|")] == [
        "key: 61 payload: /w==",
        "payload: MTIzNDU2Nzg=",
        "key: 63",
    ]
    names = ("org.apache.kafka.tools.api.StringDecoder", "StringDecoder", "string")
    told = {sparklog("dump-log", file, "--value-decoder-class", name).out for name in names}
    assert len(told) == 1
    assert "payload: \ufffd\n" in told.pop()
    only = sparklog("dump-log", file, "--print-data-log", "--skip-record-metadata").lines
    assert only[-1] == "| key: c"
    assert only[-2] == " payload: 12345678"
    assert "1 bytes" not in sparklog("dump-log", file, "--value-decoder", "long", code=1).out
    offsets = folder.parent / "__consumer_offsets-0"
    assert '"group":"g-tx"' in sparklog("dump-log", offsets / LOG, "--offsets-decoder").out
    states = folder.parent / "__transaction_state-0"
    assert '"transactionalId":"' in sparklog("dump-log", states / LOG, "--transaction-log-decoder").out


def test_json_is_one_object_per_line(sparklog: Sparklog, folder: Path) -> None:
    rows = [json.loads(line) for line in sparklog("dump-log", folder, "--print-data-log", "--json").lines]
    kinds = {"batch", "record", "txnindex", "timeindex", "producer", "leader-epoch", "property"}
    assert kinds <= {row["type"] for row in rows}
    assert {row["file"] for row in rows} == {str(file) for file in folder.iterdir() if file.stat().st_size}
    marker = next(row for row in rows if row.get("control"))
    assert marker["control"]["kind"].startswith("endTxnMarker: ")
    record = next(row for row in rows if row["type"] == "record" and "control" not in row)
    assert isinstance(record["key"], str)


@pytest.mark.usefixtures("records_in_files")
def test_files_of_a_root(sparklog: Sparklog, root: Path, orders: library.log.topic.Topic) -> None:
    told = sparklog("dump-log", root / "orders", "--print-data-log").lines
    assert "Dumping " in told[0]
    assert any("op: append" in line and line.endswith("isvalid: true") for line in told)
    assert any(line.startswith("slice: 1 partition: 1 ") and line.endswith(" isvalid: true") for line in told)
    by_name = sparklog("dump-log", "orders", "--root", root, "--print-data-log").lines
    assert by_name == told
    key = next(Path(root).rglob("*1.json")).relative_to(root)
    assert sparklog("dump-log", key, "--root", root).lines[1].startswith("format: 1 ")
    commit = root / key
    commit.write_bytes(commit.read_bytes().replace(b'"version":1', b'"version":2'))
    assert sparklog("dump-log", commit).lines[1].endswith("isvalid: false")
    file = next(root.rglob("*.slices"))
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(bytes(data))
    assert sum(line.endswith("isvalid: false") for line in sparklog("dump-log", file).lines) == 2


def test_mismatches_are_printed_after_all_files(sparklog: Sparklog, fixtures: Path) -> None:
    folder = fixtures / "damaged" / "indexes-wrong" / "data" / "damaged-0"
    files = [folder / "00000000000000000060.timeindex", folder / "00000000000000000130.index"]
    outcome = sparklog("dump-log", "--files", ",".join(map(str, files)), "--verify-index-only", code=1)
    assert [line for line in outcome.lines if not line.startswith("Dumping ")] == []
    assert "The following indexed offsets are not found in the log." in outcome.err
    assert "1 of 2 files could not be read completely [SPARKLOG_CORRUPT]" in outcome.err
    assert "no batch starts at position " in outcome.err
    gaps = sparklog("dump-log", fixtures / "compaction" / "plain" / "after", "--deep-iteration")
    assert "Non-consecutive offsets in " in gaps.err


def test_a_truncated_file_is_a_one_line_error(sparklog: Sparklog, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / LOG
    shutil.copyfile(folder / LOG, copy)
    whole = sparklog("dump-log", copy).lines
    copy.chmod(0o644)
    copy.write_bytes(copy.read_bytes() + bytes(40))
    outcome = sparklog("dump-log", copy, code=1)
    assert outcome.lines == whole
    assert outcome.err.count("\n") == 1
    assert "expected a record batch: only zeros follow" in outcome.err
    assert f"file {copy}, position {copy.stat().st_size - 40}" in outcome.err
    copy.write_bytes(copy.read_bytes()[:-30])
    assert sparklog("dump-log", copy).lines == [*whole, f"Found 10 invalid bytes at the end of {LOG}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected files: specify PATH or --files"),
        (("missing/file.log",), "does not exist"),
        (("missing.log",), "does not exist"),
        (("--files", LOG, "--key-decoder", "avro"), "choose one of string, int, long"),
        (("--files", LOG, "--cluster-metadata-decoder"), "kafka-dump-log"),
        (("notes.txt",), "cannot be dumped"),
        (("empty",), "has no segments"),
        (("alone.index",), "20 digits"),
        (("00000000000000000007.index",), "00000000000000000007.log, the log file"),
        (("x.log", "--root", "empty"), "does not exist"),
        (("damaged.slices",), "of an append file"),
        (("damaged.json",), "expected a JSON object"),
        (("damaged.arrow",), "expected an Arrow file"),
        (("words.log",), "20 digits"),
    ],
)
def test_invalid_input_is_reported_on_one_line(
    sparklog: Sparklog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in (
        LOG,
        "notes.txt",
        "alone.index",
        "00000000000000000007.index",
        "damaged.slices",
        "damaged.json",
        "damaged.arrow",
        "words.log",
    ):
        (tmp_path / name).write_bytes(b"[]" if name == "damaged.json" else b"12345678")
    before = sorted(tmp_path.iterdir())
    outcome = sparklog("dump-log", *arguments, code=2 if not arguments else 1)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
