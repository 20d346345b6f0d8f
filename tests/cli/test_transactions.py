"""`sparklog transactions`, and the transactions in `topics describe`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.transactions.producer import Transaction, transactional
from tests.cli.conftest import Sparklog

HEADING = "TRANSACTIONAL-ID  NEWEST  STATE  HOLDS-BACK"


@pytest.fixture
def held(root: Path) -> Transaction:
    """A root with a committed transaction of `done`, and an open transaction of `etl/orders` in two topics."""
    opened = library.open(root, create=True)
    for name in ("a", "b"):
        opened.create_topic(name)
    rows = pa.table({"value": [b"1", b"2"]})
    with transactional(opened, "done").begin() as transaction:
        transaction.append("a", rows)
        transaction.send_offsets("g", {"b": {0: 7}})
    transaction = transactional(opened, "etl/orders").begin()
    transaction.append("a", rows)
    transaction.append("b", rows)
    transaction._prepare_topics()
    return transaction


def test_list_shows_the_latest_transaction_of_each_id(sparklog: Sparklog, held: Transaction) -> None:
    heading, *lines = [line.split() for line in sparklog("transactions", "list").lines]
    assert heading == ["TRANSACTIONAL-ID", "NEWEST", "STATE", "HOLDS-BACK"]
    assert lines == [["done", "0", "commit", "CompleteCommit", "-"], ["etl/orders", "-", "Ongoing", "a,b"]]
    assert [line.split()[0] for line in sparklog("transactions", "list", "--open").lines[1:]] == ["etl/orders"]
    found = json.loads(sparklog("transactions", "list", "--json").out)
    assert [(item["id"], item["state"], item["newest"], item["outcome"]) for item in found] == [
        ("done", "CompleteCommit", 0, "commit"),
        ("etl/orders", "Ongoing", -1, None),
    ]


def test_describe_shows_open_and_pending_partitions(sparklog: Sparklog, held: Transaction) -> None:
    title, heading, first, second = sparklog("transactions", "describe", "etl/orders").lines
    assert title.startswith("TransactionalId: etl/orders\tState: Ongoing\tLatest: -\tInstance: ")
    assert heading.split() == ["TOPIC", "PARTITION", "N", "FIRST", "END", "AGE", "TIMEOUT"]
    assert [line.split()[:5] for line in (first, second)] == [["a", "0", "0", "2", "4"], ["b", "0", "0", "0", "2"]]
    assert first.rstrip().endswith("60.0 s")
    done = sparklog("transactions", "describe", "done").lines
    assert done[1].split() == ["GROUP", "TOPIC", "PARTITION", "OFFSET", "N", "STATE", "AGE"]
    assert done[2].split()[:6] == ["g", "b", "0", "7", "0", "committed"]
    pending = json.loads(sparklog("transactions", "describe", "done", "--json").out)["pendingOffsets"]
    assert [(item["group"], item["n"], item["committed"], item["timeoutMs"]) for item in pending] == [
        ("g", 0, True, 60_000)
    ]
    assert pending[0]["offsets"] == [{"topic": "b", "partition": 0, "offset": 7}]
    found = json.loads(sparklog("transactions", "describe", "etl/orders", "--json").out)
    assert [(item["topic"], item["first"], item["timeoutMs"]) for item in found["open"]] == [
        ("a", 2, 60_000),
        ("b", 0, 60_000),
    ]
    assert "did you mean 'done'?" in sparklog("transactions", "describe", "donne", code=1).err


def test_abort_unblocks_readers_and_fails_the_owners_commit(sparklog: Sparklog, held: Transaction) -> None:
    assert "Held back by open transactions: etl/orders" in sparklog("topics", "describe", "a").out
    assert "the latest decision is -1" in sparklog("transactions", "abort", "etl/orders", "--n", 3, code=1).err
    assert sparklog("transactions", "abort", "etl/orders").out == (
        "Aborted transaction 0 of etl/orders, which held back a, b.\n"
    )
    described = json.loads(sparklog("topics", "describe", "a", "--json").out)[0]
    assert described["openTransactions"] == []
    assert [(part["lastStable"], part["logEnd"]) for part in described["partitions"]] == [(4, 4)]
    with pytest.raises(library.Conflict, match="by an operator"):
        held.commit()
    assert "no transaction of 'etl/orders' is open" in sparklog("transactions", "abort", "etl/orders", code=1).err
    assert sparklog("transactions", "describe", "etl/orders").out.startswith(
        "TransactionalId: etl/orders\tState: CompleteAbort\tLatest: 0 abort (operator)"
    )
    assert "was never used" in sparklog("transactions", "abort", "nobody", code=1).err


def test_abort_as_json_and_help(sparklog: Sparklog, held: Transaction) -> None:
    found = json.loads(sparklog("transactions", "abort", "etl/orders", "--n", 0, "--json").out)
    assert found == {"id": "etl/orders", "n": 0, "topics": ["a", "b"], "kafka": []}
    for command in ("list", "describe", "abort"):
        assert (
            f"sparklog transactions {command}" in sparklog("transactions", command, "--help").out.split("Example:")[1]
        )


def test_describe_shows_a_decision_that_no_topic_has_recorded(sparklog: Sparklog, held: Transaction) -> None:
    held.commit()
    out = sparklog("transactions", "describe", "etl/orders").out
    assert "a: transaction 0 is decided; the next commit or `sparklog retain` records the decision" in out
    assert "Held back" not in sparklog("topics", "describe", "a").out
    found = json.loads(sparklog("transactions", "describe", "etl/orders", "--json").out)
    assert found["unrecorded"] == [
        {"topic": "a", "n": 0, "committed": True},
        {"topic": "b", "n": 0, "committed": True},
    ]


def test_a_root_without_transactions(sparklog: Sparklog) -> None:
    sparklog("topics", "create", "a")
    assert sparklog("transactions", "list").lines == [HEADING]
    assert json.loads(sparklog("transactions", "list", "--json").out) == []


# -- transactions of Kafka that were open when they were imported


@pytest.fixture
def imported(fixtures: Path, root: Path) -> Path:
    """Topics in which transaction tx-open is open. The transactional id is not known for topic txn-a."""
    opened = library.open(root, create=True)
    folder = fixtures / "transactions/data"
    import_log_dir(opened, folder, ImportOptions(topics=["txn-b"]))
    import_log_dir(opened, folder, ImportOptions(topics=["txn-a"], transactions=False))
    return root


def test_kafkas_open_transactions_are_listed_and_described(sparklog: Sparklog, imported: Path) -> None:
    lines = [line.split() for line in sparklog("transactions", "list", "--open").lines[1:]]
    assert lines == [["producer-4", "-", "Ongoing", "txn-a"], ["tx-open", "-", "Ongoing", "txn-b"]]
    title, note, heading, row = sparklog("transactions", "describe", "tx-open").lines
    assert title.startswith("TransactionalId: tx-open\tState: Ongoing\tLatest: -")
    assert note == "Open transactions in imported Kafka data:"
    assert heading.split() == ["TOPIC", "PARTITION", "PRODUCER", "FIRST", "END", "SINCE", "TIMEOUT", "DECIDED"]
    cells = row.split()
    assert cells[:5] == ["txn-b", "1", "4", "19", "26"]
    assert cells[5].endswith("Z")
    assert cells[6:] == ["900.0", "s", "-"]
    (held,) = json.loads(sparklog("transactions", "describe", "producer-4", "--json").out)["kafka"]
    assert held == {"topic": "txn-a", "partition": 0, "producer": 4, "epoch": 0, "first": 62, "end": 75}
    assert "did you mean 'tx-open'" in sparklog("transactions", "describe", "tx-opened", code=1).err


def test_an_operator_ends_kafkas_transactions(sparklog: Sparklog, imported: Path) -> None:
    wrong = sparklog("transactions", "abort", "tx-open", "--n", 0, code=1)
    assert "no transaction of 'tx-open' is open" in wrong.err
    assert sparklog("transactions", "abort", "tx-open").out == "Aborted Kafka's transaction of tx-open in txn-b-1.\n"
    found = json.loads(sparklog("transactions", "abort", "producer-4", "--json").out)
    assert (found["n"], [held["topic"] for held in found["kafka"]]) == (None, ["txn-a"])
    assert sparklog("transactions", "list", "--open").lines == [HEADING]
    topic = json.loads(sparklog("topics", "describe", "txn-b", "--json").out)[0]
    assert topic["openTransactions"] == []
    assert all(part["lastStable"] == part["logEnd"] for part in topic["partitions"])
    assert "was never used" in sparklog("transactions", "abort", "tx-open", code=1).err


def test_an_id_can_exist_in_kafka_and_in_the_root(sparklog: Sparklog, imported: Path) -> None:
    opened = library.open(imported)
    opened.create_topic("own")
    transaction = transactional(opened, "tx-open").begin()
    transaction.append("own", pa.table({"value": [b"1"]}))
    transaction._prepare_topics()
    lines = [line.split() for line in sparklog("transactions", "list", "--open").lines[1:]]
    assert lines[1] == ["tx-open", "-", "Ongoing", "own,txn-b"]
    assert sparklog("transactions", "abort", "tx-open", "--n", 0).out == (
        "Aborted transaction 0 of tx-open, which held back own.\n"
    )
    assert opened.topic("txn-b").log.state().kafka_open
    assert sparklog("transactions", "abort", "tx-open").out == "Aborted Kafka's transaction of tx-open in txn-b-1.\n"


def test_transactions_of_a_kafka_directory_have_kafkas_states(sparklog: Sparklog, fixtures: Path) -> None:
    place = fixtures / "transactions/data"
    heading, *rows = sparklog("transactions", "list", "--root", place).lines
    assert heading.split() == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    assert rows[-1].split() == ["tx-open", "__transaction_state-1", "4", "Ongoing"]
    assert len(sparklog("transactions", "list", "--open", "--root", place).lines) == 2
    first, _, *producers = sparklog("transactions", "describe", "tx-open", "--root", place).lines
    assert "TransactionState: Ongoing\tTransactionTimeoutMs: 900000" in first
    assert [row.split()[0] for row in producers] == ["__consumer_offsets-1", "txn-a-0", "txn-b-1"]
    document = json.loads(sparklog("transactions", "describe", "tx-open", "--json", "--root", place).out)
    assert document["producers"][1]["currentTransactionStartOffset"] == 62
    sparklog("transactions", "abort", "tx-open", "--root", place, code=1)


def test_history_shows_decisions_and_their_topics(sparklog: Sparklog, held: Transaction) -> None:
    heading, *lines = [line.split() for line in sparklog("transactions", "history", "done").lines]
    assert heading == ["ENTRY", "TIME", "OPERATION", "N", "REASON", "WRITES-TO"]
    commit = next(line for line in lines if line[2] == "commit")
    assert (commit[3], commit[4], commit[5]) == ("0", "-", "a,g")
    sparklog("transactions", "abort", "etl/orders")
    newest = json.loads(sparklog("transactions", "history", "etl/orders", "--limit", 1, "--json").out)[0]
    assert (newest["operation"], newest["reason"], newest["n"]) == ("abort", "operator", 0)
    assert "does not exist" in sparklog("transactions", "history", "none", code=1).err
