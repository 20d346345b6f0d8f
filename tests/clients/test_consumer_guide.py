"""The code of docs/guides/consumers.md runs, and prints the output in the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparklog

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "consumers.md"


def test_the_snippets_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
    assert program.count('"/data/log"') == 1
    exec(compile(program.replace("/data/log", str(tmp_path)), str(GUIDE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[0]) for line in lines if "order " in line) == 100
    assert [line for line in lines if line.endswith("b'anna' b'lamp' [('shop', b'7')]")]
    called = [line.partition(" [")[0] for line in lines if "[('orders'" in line]
    assert called in (
        ["assigned:", "revoked, commit their offsets now:", "revoked, commit their offsets now:"],
        ["assigned:", "revoked, commit their offsets now:"],
    )
    assert set(sparklog.Groups(tmp_path).names()) == {"billing", "shipping", "audit"}
