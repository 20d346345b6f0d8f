"""`sparklog repair`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog


@pytest.fixture
def log(root: Path) -> Path:
    topic = library.open(root, create=True).create_topic("orders", configs={"inline.records.bytes": 0})
    topic.append(pa.table({"value": [b"one", b"two"]}))
    return root


def damage(log: Path) -> tuple[Path, bytes]:
    (file,) = log.glob("orders/append/*.slices")
    data = bytearray(file.read_bytes())
    data[70] ^= 4
    file.write_bytes(data)
    return file, bytes(data)


def test_repair_is_a_dry_run_without_execute(sparklog: Sparklog, log: Path) -> None:
    assert sparklog("repair", log).lines == [f"nothing to repair in {log}"]
    file, wrong = damage(log)
    name = str(file.relative_to(log))
    would, verdict = sparklog("repair", log).lines
    assert would == f"{name}: would be corrected by flipping one bit back"
    result = "after which no damage remains; nothing was changed; add --execute to repair"
    assert verdict == f"would repair 1 file of {log}, {result}"
    assert file.read_bytes() == wrong
    (item,) = json.loads(sparklog("repair", "--root", log / "orders", "--execute", "--json").out)["repaired"]
    assert (item["file"], item["how"]) == (name, "corrected by flipping one bit back")
    assert (log / item["aside"]).read_bytes() == wrong
    assert sparklog("verify").code == 0
    assert sparklog("consume", "orders", "--max-messages", 2).lines == ["one", "two"]


def test_unrepairable_damage_is_listed(sparklog: Sparklog, log: Path) -> None:
    file, _ = damage(log)
    file.write_bytes(file.read_bytes()[:60])
    left, verdict = sparklog("repair", log, "--execute", code=1).lines
    assert left.startswith(f"remaining: size: {file.relative_to(log)}")
    assert verdict == f"repaired 0 files of {log}; 1 problem remains that repair cannot fix"


def test_usage(sparklog: Sparklog, log: Path, tmp_path: Path) -> None:
    sparklog("repair", log, "--execute", "--dry-run", code=2)
    sparklog("repair", tmp_path / "nowhere", code=1)
    assert "only applies to Kafka directories" in sparklog("repair", log, "--index-interval-bytes", 100, code=1).err
