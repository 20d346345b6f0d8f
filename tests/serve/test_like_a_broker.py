"""What a broker answers to odd batches and requests, and to changed requests of real clients: the same here.

`broker_answers.json` has what a broker of Kafka 4.1.0 answered. Where we differ on purpose, `DIFFERENT` says what we
answer and why.

    python -m tests.serve.test_like_a_broker HOST:PORT  # ask a broker (auto.create.topics.enable=false), write it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import in_memory, serving
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing
from tests.serve.broker_cases import Answer, Asked, answers
from tests.serve.client_requests import replayed
from tests.support.odd_batches import TIME_MS

ANSWERS = Path(__file__).with_name("broker_answers.json")
OPTIONS = ServeOptions(listen=Address("127.0.0.1", 0), writable=True, linger_seconds=0.0)

REFUSED = ["INVALID_RECORD"]
DIFFERENT: dict[str, Answer] = {
    # The server sets the base offset in any case, so that a wrong one does no harm.
    "counts: base offset 5": ["NONE", 0, [[0, 1, TIME_MS, TIME_MS, 0, 2]]],
    # A broker stores these, and no reader can make sense of their offsets, or of their times.
    "counts: deltas 0, 0": REFUSED,
    "counts: deltas 1, 0": REFUSED,
    "counts: delete horizon bit": REFUSED,
    # A broker drops the half batch silently.
    "counts: a batch and a half": REFUSED,
    # A broker fails without a reason, or closes the connection.
    "counts: deltas 0, 2 in gzip": REFUSED,
    "counts: codec 5": REFUSED,
    "counts: codec 7": REFUSED,
    "counts: null": REFUSED,
}


def asked(address: Address) -> dict[str, Any]:
    """Return a server's answers to all cases and to all requests of clients."""
    server = Asked(address)
    try:
        return {"cases": answers(address), "clients": replayed(server)}
    finally:
        server.close()


def different(found: dict[str, Answer], known: dict[str, Answer]) -> dict[str, tuple[Answer, Answer]]:
    assert found.keys() == known.keys()
    return {name: (found[name], known[name]) for name in known if found[name] != known[name]}


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    with serving(in_memory(), OPTIONS) as address:
        return asked(address)


@pytest.fixture(scope="module")
def brokers() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(ANSWERS.read_text())
    return known


def test_odd_batches_and_requests_are_answered_as_by_a_broker(ours: dict[str, Any], brokers: dict[str, Any]) -> None:
    assert {name: mine for name, (mine, _) in different(ours["cases"], brokers["cases"]).items()} == DIFFERENT


def test_requests_of_clients_that_mean_the_same_to_a_broker_mean_the_same_here(
    ours: dict[str, Any], brokers: dict[str, Any]
) -> None:
    assert different(ours["clients"], brokers["clients"]) == {}


@pytest.mark.java
@pytest.mark.slow
def test_a_broker_answers_as_it_did(tmp_path: Path, brokers: dict[str, Any]) -> None:
    try:
        broker = Broker(tmp_path / "broker", "auto.create.topics.enable=false\n")
    except Missing as missing:
        pytest.skip(str(missing))
    with broker:
        found = asked(Address("127.0.0.1", broker.port))
    assert {kind: different(found[kind], brokers[kind]) for kind in found} == {"cases": {}, "clients": {}}


def write(found: dict[str, Any]) -> None:
    """Write answers, a line for each."""
    parts = []
    for kind, rows in found.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in sorted(rows.items()))
        parts.append(f"{json.dumps(kind)}: {{\n{lines}\n}}")
    ANSWERS.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    write(asked(Address.of(sys.argv[1])))
