"""Run the snippets and commands of docs/guides/schemas.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import sparklog
from tests.support.command_line import invoke
from tests.support.servers.schema_registry import FakeRegistry

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "schemas.md"
ORDER = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "item", "type": ["null", "string"], "default": null}]}'
)


@pytest.fixture(autouse=True)
def avro() -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")


def snippets(language: str, server: FakeRegistry, folder: Path) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return [text.replace("http://localhost:8081", server.url).replace("/data/", f"{folder}/") for text in found]


def test_python_snippets_run_in_order(server: FakeRegistry, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    for snippet in snippets("python", server, tmp_path):
        if "spark.read" in snippet:
            continue  # tests/datasource/test_spark_value_format.py runs this snippet.
        exec(compile(snippet, str(GUIDE), "exec"), names)
    assert names["dataset"]


def test_commands_print_the_documented_output(server: FakeRegistry, tmp_path: Path) -> None:
    consume, produce = snippets("console", server, tmp_path)
    server.register("orders-value", ORDER)
    sparklog.open(tmp_path / "log", create=True)
    command, printed = consume.rstrip().split("\n")

    def run(line: str, text: str) -> str:
        (tmp_path / "lines").write_text(text)
        words = shlex.split(line.partition("sparklog ")[2])
        words += ["--file", str(tmp_path / "lines")] if text else []
        result = invoke(words, {})
        assert result.exit_code == 0, result.stderr
        return result.stdout

    echo = re.search(r"echo '(.*)' \|", produce)
    assert echo is not None
    run(produce, f"{printed}\n{echo[1]}\n")
    assert run(command, "") == f"{printed}\n{echo[1]}\n"
