"""The verify job: in its own process for small roots or without Spark, and in Spark tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparklog
from sparklog.jobs import verify
from sparklog.maintenance.spark_runner import SparkRunner
from sparklog.maintenance.work_items import InProcess
from tests.support.small_limits import small_limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A root with two topics of ten small files each."""
    root = sparklog.open(tmp_path / "root", create=True)
    for name in ("orders", "clicks"):
        topic = root.create_topic(name)
        for number in range(10):
            topic.append(pa.table({"value": pa.array([b"%d" % number] * 5)}))
    return tmp_path / "root"


def chosen(directory: Path, *more: str) -> verify.Verify:
    return verify.arguments(["--root", str(directory), *more])


def damaged(directory: Path) -> str:
    """Flip a bit in a file, and return its key."""
    file = sorted((directory / "orders" / "append").iterdir())[4]
    data = bytearray(file.read_bytes())
    data[77] ^= 16
    file.chmod(0o644)
    file.write_bytes(data)
    return str(file.relative_to(directory))


@pytest.mark.usefixtures("records_in_files")
def test_verify_of_an_intact_root_and_a_flipped_bit(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.run(InProcess(), chosen(directory)) == 0
    said = capsys.readouterr()
    assert said.out.startswith(
        "every byte accounted for: 2 topics, 22 commits, 21 files, 20 slices, 20 batches, 100 rec"
    )
    assert re.search(r"10 of 20 files, [\d.]+ kB of [\d.]+ kB \(verify clicks\)", said.err)
    key = damaged(directory)
    assert verify.run(InProcess(), chosen(directory, "--quick")) == 0
    assert verify.run(InProcess(), chosen(directory, "--topic", "clicks")) == 0
    capsys.readouterr()
    assert verify.run(InProcess(), chosen(directory, "--json")) == 1
    (found,) = json.loads(capsys.readouterr().out)["problems"]
    assert (found["file"], found["position"], found["bit"]) == (key, 77, 4)


def test_wrong_input(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.run(InProcess(), chosen(tmp_path / "nowhere")) == 1
    assert verify.run(InProcess(), chosen(directory, "--topic", "order")) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"sparklog verify: {tmp_path / 'nowhere'} is not a sparklog root")
    assert "did you mean 'orders'" in second
    for given in (["--now-ms", "5"], ["--topic", "a/b"]):
        with pytest.raises(SystemExit) as stopped:
            chosen(directory, *given)
        assert stopped.value.code == 2


def test_an_empty_root_is_intact_and_reported_as_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparklog.open(tmp_path / "root", create=True)
    assert verify.run(InProcess(), chosen(tmp_path / "root")) == 0
    said = capsys.readouterr()
    assert "there are no topics in" in said.err
    assert said.out.startswith("every byte accounted for: 1 file, ")


@pytest.fixture
def few_files_at_once() -> Iterator[None]:
    with small_limits(verify_piece_files=4):
        yield


@pytest.mark.usefixtures("records_in_files")
def test_tasks_of_spark_find_the_same(
    spark: SparkSession, directory: Path, capsys: pytest.CaptureFixture[str], few_files_at_once: None
) -> None:
    runner = SparkRunner(spark, quiet=True)
    assert verify.run(runner, chosen(directory, "--json")) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert verify.run(InProcess(), chosen(directory, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == counts
    key = damaged(directory)
    assert verify.run(runner, chosen(directory)) == 1
    said = capsys.readouterr()
    assert f"checksum: {key} at byte 77, bit 4 flipped" in said.out
    assert re.search(r"(\d+) of \1 files, (.*) of \2 \(", said.err)
