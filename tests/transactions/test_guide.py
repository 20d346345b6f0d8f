"""The examples and the errors in docs/guides/transactions.md are correct."""

from __future__ import annotations

import re
from pathlib import Path

import sparklog
from sparklog.datasource.option_table import find_option

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "transactions.md"


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_snippets_without_spark_run_in_order(tmp_path: Path) -> None:
    program = "\n".join(text for text in snippets() if "spark." not in text)
    assert program.count('"/data/log"') == 1
    sparklog.open(tmp_path, create=True)
    exec(compile(program.replace("/data/log", str(tmp_path)), str(GUIDE), "exec"), {})
    root = sparklog.open(tmp_path)
    values = {name: root.topic(name).scan().to_table().column("value").to_pylist() for name in root.topics()}
    assert values == {"orders": [b"book", b"lamp"], "payments": [b"12.50"], "invoices": [b"book"]}


def test_options_are_documented_with_their_accepted_spelling() -> None:
    names = re.findall(r'\.option\("([\w.]+)"', "\n".join(snippets()))
    assert names
    assert [option.name for name in names if (option := find_option(name))] == names
