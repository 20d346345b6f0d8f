"""The pages about the server match the code."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from sparklog.serve.apis.table import APIS
from sparklog.serve.codes import Code
from sparklog.testing.kafka_server import KafkaServer
from tests.serve.peers.tool_cases import CLASSES, OFFLINE, TOOL_CASES
from tests.support.command_line import invoke

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides" / "serve.md").read_text()
REFERENCE = (DOCS / "reference" / "serve.md").read_text()
MANUAL_TOOLS = {"kafka-replica-verification", "kafka-console-share-consumer"}
"""Tools that do not end by themselves."""


def test_the_table_has_the_supported_versions() -> None:
    rows = re.findall(r"^\| (\w+) \((\d+)\) \| (\d+)(?:-(\d+))? \|", REFERENCE, re.MULTILINE)
    listed = {(name, int(key), int(low), int(high or low)) for name, key, low, high in rows}
    assert listed == {(api.name, api.key, api.min_version, api.max_version) for api in APIS.values()}


def test_every_listed_api_is_supported() -> None:
    assert all(callable(api.handler) for api in APIS.values())


def test_the_page_has_the_result_of_each_tool() -> None:
    table = REFERENCE.partition("## Kafka's command-line tools")[2].partition("\n## ")[0]
    tools = [re.findall(r"`([a-z0-9-]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    assert sorted(itertools.chain(*tools)) == sorted((*CLASSES, *OFFLINE))
    assert {case.tool for case in TOOL_CASES} == set(CLASSES) - MANUAL_TOOLS


def test_error_codes_on_the_page_exist() -> None:
    codes = re.findall(r"`([A-Z]+_[A-Z_]+)`", REFERENCE)
    assert codes
    assert all(code in Code.__members__ for code in codes)


def test_the_guides_snippet_is_a_test(kafka_server: KafkaServer) -> None:
    names: dict[str, Any] = {}
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    exec(snippet, names)
    names["test_an_order_is_sent"](kafka_server)
    assert kafka_server.root.topics() == ["orders"]


def test_commands_in_the_guide_have_the_options_they_use() -> None:
    options = invoke(["serve", "--help"]).output
    for option in set(re.findall(r"(--[a-z-]+)", "\n".join(re.findall(r"^sparklog serve.*$", GUIDE, re.MULTILINE)))):
        assert option in options
