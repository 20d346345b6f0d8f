"""The server's responses to unusual batches and requests, and to changed requests of real clients, equal a broker's.

`broker_answers.json` has the responses of a Kafka 4.1.0 broker. `DIFFERENT` lists intended differences with their
reasons.

    python -m tests.serve.test_like_a_broker HOST:PORT  # record a broker (auto.create.topics.enable=false)
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
from tests.serve.broker_cases import CASES, Answer, Asked, answers
from tests.serve.client_requests import replayed
from tests.serve.consumer_cases import CONSUMER_CASES, DIFFERENT_STEPS
from tests.serve.transaction_cases import TRANSACTION_CASES
from tests.support.odd_batches import TIME_MS

ANSWERS = Path(__file__).with_name("broker_answers.json")
OPTIONS = ServeOptions(listen=Address("127.0.0.1", 0), writable=True, linger_seconds=0.0)

REFUSED = ["INVALID_RECORD"]
DIFFERENT: dict[str, Answer] = {
    # The server always sets the base offset, so a wrong base offset has no effect.
    "counts: base offset 5": ["NONE", 0, [[0, 1, TIME_MS, TIME_MS, 0, 2]]],
    # A broker stores these batches, although readers cannot use their offsets or timestamps.
    "counts: deltas 0, 0": REFUSED,
    "counts: deltas 1, 0": REFUSED,
    "counts: delete horizon bit": REFUSED,
    # A broker drops the incomplete batch silently.
    "counts: a batch and a half": REFUSED,
    # A broker fails without a reason, or closes the connection.
    "counts: deltas 0, 2 in gzip": REFUSED,
    "counts: codec 5": REFUSED,
    "counts: codec 7": REFUSED,
    "counts: null": REFUSED,
    # The server adds the topic itself, as brokers do in version 2 of the protocol of transactions.
    "transactions: batch for a partition that was not added": [
        *(["NONE", True, True], ["NONE"], "NONE", "NONE", "NONE"),
        [[["1"], ["2"]], [["1"], ["2"]]],
    ],
}


def asked(address: Address) -> dict[str, Any]:
    """Return a server's responses to all cases and to all client requests."""
    server = Asked(address)
    try:
        return {
            "cases": answers(address, {**CASES, **TRANSACTION_CASES, **CONSUMER_CASES}),
            "clients": replayed(server),
        }
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


def test_unusual_batches_and_requests_get_a_brokers_response(ours: dict[str, Any], brokers: dict[str, Any]) -> None:
    known = brokers["cases"]
    scripts = {
        name: [steps.get(index, answer) for index, answer in enumerate(known[name])]
        for name, steps in DIFFERENT_STEPS.items()
    }
    assert {name: mine for name, (mine, _) in different(ours["cases"], known).items()} == {**DIFFERENT, **scripts}


def test_equivalent_requests_of_clients_have_equal_responses(ours: dict[str, Any], brokers: dict[str, Any]) -> None:
    assert different(ours["clients"], brokers["clients"]) == {}


@pytest.mark.java
@pytest.mark.slow
def test_a_broker_still_returns_the_recorded_responses(tmp_path: Path, brokers: dict[str, Any]) -> None:
    try:
        broker = Broker(tmp_path / "broker", "auto.create.topics.enable=false\n")
    except Missing as missing:
        pytest.skip(str(missing))
    with broker:
        found = asked(Address("127.0.0.1", broker.port))
    assert {kind: different(found[kind], brokers[kind]) for kind in found} == {"cases": {}, "clients": {}}


def write(found: dict[str, Any]) -> None:
    """Write responses, one per line."""
    parts = []
    for kind, rows in found.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in sorted(rows.items()))
        parts.append(f"{json.dumps(kind)}: {{\n{lines}\n}}")
    ANSWERS.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    write(asked(Address.of(sys.argv[1])))
