"""The code of docs/guides/producer.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import sparklog

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "producer.md"


def test_the_snippets_run_in_order_and_repeatedly(tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(snippets)
    assert program.count('"/data/log"') == 1
    for _ in range(2):
        exec(compile(program.replace("/data/log", str(tmp_path)), str(GUIDE), "exec"), {})
    values = sparklog.open(tmp_path).topic("orders").scan().to_table().column("value").to_pylist()
    assert [values.count(value) for value in (b"lamp", b"desk", b"sofa")] == [3, 1, 1]
    assert len(values) == 2 * 103 + 3
    assert sparklog.open(tmp_path).topic("invoices").count().records == len(values)
