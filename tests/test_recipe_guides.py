"""Run the recipes of docs/guides: an endpoint, read models and a second site."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import testing
from sparklog.errors import Fenced, Unavailable
from sparklog.testing.faulty_store import Call, Fault, FaultKind
from tests.support.command_line import invoke

GUIDES = Path(__file__).parents[1] / "docs" / "guides"


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (GUIDES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)


def run(name: str, root: Path) -> dict[str, Any]:
    """Run the snippets of a guide in order, with this root. Return their names."""
    names: dict[str, Any] = {}
    program = "\n".join(blocks(name, "python"))
    assert '"/data/log"' in program
    exec(compile(program.replace("/data/log", str(root)), f"{name}.md", "exec"), names)
    return names


def test_endpoint_processes_each_request_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("idempotent-endpoint", tmp_path)
    assert "payments-endpoint" in capsys.readouterr().out
    other = names["newer"].pay("5f0c", {"customer": "anna", "amount": 21})
    assert other == {"error": "the id is of another payment"}
    assert names["newer"].pay("5f0d", {"customer": "ben", "amount": 5}) == {"receipt": "ben paid 5"}
    assert sparklog.open(tmp_path).topic("payments").scan().to_table()["value"].to_pylist() == [b"20", b"5"]
    with pytest.raises(Fenced):
        names["server"].payments.pay("5f0e", {"customer": "ben", "amount": 5})


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_outage_at_any_step_processes_the_request_once(tmp_path: Path, kind: FaultKind) -> None:
    first = blocks("idempotent-endpoint", "python")[0].replace("/data/log", str(tmp_path))
    names: dict[str, Any] = {}
    exec(compile(first, "idempotent-endpoint.md", "exec"), names)
    world = testing.World()
    outage = Outage(kind)
    root = world.root(testing.FaultyStore(world.store, outage, world.sleep))
    for topic in ("payments", "payment-answers"):
        root.ensure_topic(topic)
    failed = 0
    for step in range(20):
        payments, payment = names["Payments"](root), {"customer": "anna", "amount": step}
        outage.begin(step)
        try:
            payments.pay(str(step), payment)
        except Unavailable:
            failed += 1
        outage.end()
        assert payments.pay(str(step), payment) == {"receipt": f"anna paid {step}"}
    paid = world.topic("payments").scan().to_table()["value"].to_pylist()
    assert paid == [str(step).encode() for step in range(20)]
    assert 3 <= failed < 20


class Outage:
    """A store that fails from a given create on, until the outage ends. The create may still take effect."""

    def __init__(self, kind: FaultKind) -> None:
        self._kind = kind
        self._left: int | None = None

    def begin(self, step: int) -> None:
        self._left = step

    def end(self) -> None:
        self._left = None

    def __call__(self, call: Call) -> Fault | None:
        if self._left is None:
            return None
        if self._left == 0 and call.verb == "create":
            self._left = -1
            return Fault(self._kind)
        if self._left < 0:
            return Fault(FaultKind.ERROR_BEFORE)
        self._left -= call.verb == "create"
        return None


def test_queries_follow_commands(tmp_path: Path) -> None:
    names = run("read-models", tmp_path)
    with pytest.raises(ValueError, match="anna has less than 31"):
        names["deposit"]("anna", -31)
    assert names["queries"].balance("anna", after=names["deposit"]("anna", -30)) == 0
    events = sparklog.open(tmp_path).topic("account-events").scan().to_table()["value"].to_pylist()
    assert events == [b'{"deposit": 50}', b'{"deposit": -20}', b'{"deposit": -30}']


def commands(folder: Path) -> list[list[str]]:
    """Return the commands of the page about a second site, as words without the name of the program."""
    lines = [line for text in blocks("second-site", "sh") for line in text.splitlines()]
    places = {"/data/": f"{folder}/data/", "/site-b/": f"{folder}/site-b/"}
    for old, new in places.items():
        lines = [line.replace(old, new) for line in lines]
    return [shlex.split(line)[1:] for line in lines]


def done(words: list[str]) -> str:
    result = invoke(words)
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_second_site_starts_from_a_backup(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "data" / "log", create=True)
    root.ensure_topic("orders").append(pa.table({"value": ["lamp", "desk"]}))
    with sparklog.consumer(root, "billing", topics="orders", auto_offset_reset="earliest") as consumer:
        consumer.poll()
    backup, restore, verify, _, reset, _ = commands(tmp_path)
    done(backup)
    root.topic("orders").append(pa.table({"value": ["sofa"]}))
    done(restore)
    done(verify)
    other = sparklog.open(tmp_path / "site-b" / "log")
    assert other.topic("orders").scan().to_table()["value"].to_pylist() == [b"lamp", b"desk"]
    assert sparklog.Groups(other).group("billing").committed()["orders", 0].offset == 2
    assert other.engine.root_id != root.engine.root_id

    # Create a root like a stream. A group starts there by time.
    copy = sparklog.open(tmp_path / "site-b" / "log-copy", create=True)
    times = pa.array([0, 2**41], pa.timestamp("ms"))  # One time is before the time in the guide, and one is after it.
    copy.ensure_topic("orders").append(pa.table({"value": ["lamp", "desk"], "timestamp": times}))
    done(reset)
    assert sparklog.Groups(copy).group("billing").committed()["orders", 0].offset == 1

    # In this backup, an object has not arrived yet.
    max((tmp_path / "site-b" / "backups" / "orders" / "_log").glob("*.json")).unlink()
    result = invoke([*restore[:-1], f"{tmp_path}/third"])
    assert result.exit_code == 1
    assert "orders/_log/" in result.stderr


def test_documented_streams_between_sites_are_valid_commands(tmp_path: Path) -> None:
    stream = pytest.importorskip("sparklog.jobs.stream", reason="needs pyspark")
    first, second = (words[1:] for words in commands(tmp_path) if words[0] == "stream")
    assert stream.arguments(first).subscribe == "orders,payments"
    assert re.fullmatch(stream.arguments(second).subscribe_pattern, "orders-oslo")
