"""Examples in docs/guides/reading-less.md run. tests/datasource/test_spark_docs.py runs the Spark examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow as pa

import sparklog
from tests.support.command_line import invoke

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "reading-less.md").read_text()


def snippets(heading: str, language: str) -> list[str]:
    """Return the snippets of a section."""
    section = GUIDE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found
    return found


def test_the_snippets_run(tmp_path: Path) -> None:
    for text in snippets("In Python", "python"):
        exec(compile(text.replace("/data/log", str(tmp_path / "log")), "reading-less.md", "exec"), {})
    shown = []
    for line in snippets("In the shell", "sh")[0].splitlines():
        result = invoke([word.replace("/data/log", str(tmp_path / "log")) for word in shlex.split(line)[1:]])
        assert result.exit_code == 0, result.output
        shown.append(result.stdout.splitlines())
    assert shown[0] == ["/pay"]
    assert sorted(shown[1]) == ["anna\t/home", "anna\t/pay", "ben\t/cart"]


def test_records_written_to_an_explicit_partition_need_a_search_of_all_partitions(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t", partitions=2)
    topic.append(pa.table({"key": ["a", "a"], "value": ["0", "1"], "partition": pa.array([0, 1], pa.int32())}))

    def consumed(*more: str) -> list[str]:
        result = invoke(["consume", "t", "--root", tmp_path, "--key", "a", *more])
        assert result.exit_code == 0, result.output
        return list(result.stdout.splitlines())

    assert topic.scan(keys=["a"]).to_table().num_rows == len(consumed()) == 1
    assert topic.scan(keys=["a"], partitions=[0, 1]).to_table().num_rows == 2
    assert consumed("--all-partitions") == ["0", "1"]
    wrong = invoke(["consume", "t", "--root", tmp_path, "--key", "a", "--key-format", "long"])
    assert "expected a long, found 'a'" in wrong.output
    assert [consumed("--partition", number) for number in "01"] == [["0"], ["1"]]
