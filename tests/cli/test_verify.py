"""`sparklog verify`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.groups.lag import Groups
from sparklog.transactions.producer import transactional
from tests.cli.conftest import Sparklog


@pytest.fixture
def log(root: Path) -> Path:
    opened = library.open(root, create=True)
    for name in ("orders", "clicks"):
        topic = opened.create_topic(name)
        topic.append(pa.table({"value": [b"one", b"two"]}))
    return root


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.usefixtures("records_in_files")
def test_verify_accounts_for_every_byte_of_an_intact_root(sparklog: Sparklog, log: Path) -> None:
    (line,) = sparklog("verify").lines
    assert line.startswith("every byte accounted for: 2 topics, 4 commits, 3 files, 2 slices, 2 batches, 4 records, ")
    (quick,) = sparklog("verify", "--quick").lines
    assert quick.startswith("all files exist, their contents were not read: 2 topics, 4 commits, 3 files, 2 slices, ")
    found = json.loads(sparklog("verify", "--json").out)
    size = sum(path.stat().st_size for path in log.rglob("*") if path.is_file())
    assert (found["sound"], found["problems"], found["counts"]["bytes"]) == (True, [], size)


@pytest.mark.usefixtures("records_in_files")
def test_verify_reports_damage_and_exits_with_1(sparklog: Sparklog, log: Path) -> None:
    file = only(log, "orders/append/*.slices")
    data = bytearray(file.read_bytes())
    data[70] ^= 4
    file.chmod(0o644)
    file.write_bytes(data)
    problem, verdict = sparklog("verify", code=1).lines
    assert problem.startswith(f"checksum: {file.relative_to(log)} at byte 70, bit 2 flipped, offset 0: ")
    assert problem.endswith("; restore the file from a backup")
    assert verdict.startswith(f"DAMAGED: 1 problem in 1 file of {log}; checked 2 topics")
    assert sparklog("verify", "--topic", "clicks").code == 0
    assert sparklog("verify", "--root", log / "clicks").code == 0
    sparklog("verify", "--root", log / "orders", code=1)
    (found,) = json.loads(sparklog("verify", "--json", code=1).out)["problems"]
    assert (found["kind"], found["file"]) == ("checksum", str(file.relative_to(log)))
    assert (found["position"], found["bit"], found["offset"]) == (70, 2, 0)


@pytest.mark.usefixtures("records_in_files")
def test_unreferenced_files_are_listed_and_are_not_damage(sparklog: Sparklog, log: Path) -> None:
    (log / "orders" / "append" / "00000000000000000001-lost.slices").write_bytes(b"12345")
    (log / "notes.txt").write_bytes(b"mine")
    first, orphan, second, foreign, verdict = sparklog("verify").lines
    assert first.startswith("1 unreferenced file")
    assert "00000000000000000001-lost.slices  5 bytes, " in orphan
    assert second.startswith("1 unrecognized file")
    assert foreign.strip().startswith("notes.txt  4 bytes, ")
    assert verdict.startswith("every byte accounted for")


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--root", "{}/nothing"], "does not exist"),
        (["--root", "{}/orders/append"], "is not a sparklog root: it has no _root.json"),
        (["--topic", "order"], "topic 'order' does not exist in {}; did you mean 'orders'?"),
        (["--root", "{}/orders", "--topic", "clicks"], "is the directory of topic orders: use the root"),
    ],
)
def test_invalid_input_is_a_one_line_error(sparklog: Sparklog, log: Path, arguments: list[str], said: str) -> None:
    outcome = sparklog("verify", *(each.format(log) for each in arguments), code=1)
    (line,) = outcome.err.splitlines()
    assert said.format(log) in line
    assert outcome.out == ""


@pytest.mark.parametrize("folder", ["_groups", "_transactions"])
def test_the_directory_of_groups_is_not_a_damaged_root(sparklog: Sparklog, log: Path, folder: str) -> None:
    root = library.open(log)
    Groups(root).group("billing").join("one").commit({"orders": {0: 1}})
    with transactional(root, "job").begin() as transaction:
        transaction.append("orders", pa.table({"value": [b"lamp"]}))
    for arguments in ([], ["--quick"]):
        outcome = sparklog("verify", "--root", log / folder, *arguments, code=1)
        assert outcome.out == ""
        assert "is not a sparklog root" in outcome.err


def test_verify_reports_a_missing_root_id(sparklog: Sparklog, log: Path) -> None:
    (log / "_root.json").unlink()
    problem, _ = sparklog("verify", code=1).lines
    assert problem.startswith("missing: _root.json: the root has topics, but no file with the root id")


def test_kafka_directories(sparklog: Sparklog, fixtures: Path) -> None:
    folder = fixtures / "transactions" / "data"
    (line,) = sparklog("verify", "--root", folder).lines
    assert line.startswith("every byte accounted for: 4 topics, ")
    assert len(sparklog("verify", "--root", folder / "txn-a-0").lines) == 1
    damaged = fixtures / "damaged" / "bit-flipped" / "data"
    problem, _ = sparklog("verify", "--root", damaged, code=1).lines
    assert problem.startswith("checksum: damaged-0/00000000000000000197.log at byte 4014, bit 5 flipped, offset 226: ")
    outcome = sparklog("verify", "--root", folder, "--quick", code=1)
    assert "--quick works only for sparklog roots" in outcome.err
    assert "did you mean 'txn-a'" in sparklog("verify", "--root", folder, "--topic", "txna", code=1).err
