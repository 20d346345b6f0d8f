"""The command `sparklog transactions`, which lists, describes and aborts transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from sparklog.common.times import iso_time
from sparklog.console.locations import open_root, open_source
from sparklog.console.options import RootOption, SourceOption, integer_option
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import Output, print_table, printable
from sparklog.errors import NotFound
from sparklog.output import json_value

if TYPE_CHECKING:
    from sparklog.console.locations import OpenLocation
    from sparklog.errors import SparklogError
    from sparklog.kafka.importing.kafka_transactions import KafkaProducerState, KafkaTransactionalId
    from sparklog.log.decisions.decision import Decisions
    from sparklog.transactions.listing import KafkaTransaction, TransactionDescription

app = Commands("transactions", "List, describe and abort transactions.")

OUTCOME_NAMES = {None: "pending", True: "committed", False: "aborted"}
OFFSET = ("topic", "partition", "offset")
PRODUCER_HEADINGS = (
    *("PARTITION", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP"),
    *("TRANSACTION-START", "SNAPSHOT"),
)
IdArgument = Annotated[str, Argument(metavar="ID", help="The transactional id to act on.")]


@app.add("list", "sparklog transactions list --root /data/log")
def list_(
    root: SourceOption,
    open_only: Annotated[
        bool, Option("--open", help="List only transactional ids whose open transaction blocks readers of a topic.")
    ] = False,
) -> Output:
    """List transactional ids.

    Shows the state of the latest transaction of each transactional id. For a Kafka log directory, shows the states in
    the transaction log.
    """
    from sparklog.transactions.listing import list_transactions

    source = open_source(root)
    if source.root is None:
        return _list_kafka(source, open_only)
    failures: list[SparklogError] = []
    everything = list_transactions(source.root, failures)
    shown = [item for item in everything if item.held or item.kafka or not open_only]
    rows = []
    for item in shown:
        topics = dict.fromkeys([*(part.topic for part in item.held), *(part.topic for part in item.kafka)])
        rows.append((item.id, _latest_decision(item), item.state, ",".join(topics) or None))
    headings = ("TRANSACTIONAL-ID", "NEWEST", "STATE", "HOLDS-BACK")
    return Output([_document(item) for item in shown], lambda: print_table(headings, rows), failures)


@app.add("describe", "sparklog transactions describe orders-job --root /data/log")
def describe(transactional_id: IdArgument, root: SourceOption) -> Output:
    """Describe the transactions of a transactional id.

    For an open transaction, shows its age, its timeout, and the partitions whose last stable offset it holds back. For
    a Kafka log directory, shows the transaction log, and the producer state in the latest snapshot of each partition.
    """
    from sparklog.transactions.listing import describe_transaction

    source = open_source(root)
    if source.root is None:
        return _describe_kafka(source, transactional_id)
    failures: list[SparklogError] = []
    transaction = describe_transaction(source.root, transactional_id, failures)
    return Output(_document(transaction), lambda: _show(transaction), failures)


@app.add("history", "sparklog transactions history orders-job --limit 10 --root /data/log")
def history(
    transactional_id: IdArgument,
    root: RootOption,
    limit: Annotated[int, integer_option(low=1, text="Maximum number of entries to print.")] = 100,
) -> Output:
    """Show the decisions of a transactional id, latest decision first.

    Shows begins, commits and aborts with their times, reasons and topics. Decisions are retained for at least seven
    days.
    """
    from sparklog.log.journal.names import check_id

    opened = open_root(root)
    entries = opened.engine.decisions.log(check_id(transactional_id, "transactional id")).latest_entries(limit)
    if not entries:
        raise NotFound(
            f"transactional id '{transactional_id}' does not exist; `sparklog transactions list` lists all ids"
        )
    rows = [_decision(entry) for entry in entries]
    headings = ("ENTRY", "TIME", "OPERATION", "N", "REASON", "WRITES-TO")

    def show() -> None:
        cells = [(*list(row.values())[:-2], ",".join([*row["topics"], *row["groups"]]) or None) for row in rows]
        print_table(headings, cells, right=("ENTRY", "N"))

    return Output(rows, show)


def _decision(entry: Decisions) -> dict[str, Any]:
    commit = None if entry.n is None else entry.commit_of(entry.n)
    prepared, groups = (commit.prepares, commit.groups) if commit else (entry.prepared, entry.prepared_groups)
    return {
        "entry": entry.number,
        "timestamp": iso_time(entry.created_ms),
        "operation": entry.op,
        "n": entry.n,
        "reason": entry.reason,
        "topics": list(dict.fromkeys(item.topic for item in prepared)),
        "groups": list(dict.fromkeys(item.group for item in groups)),
    }


@app.add("abort", "sparklog transactions abort orders-job --root /data/log")
def abort(
    transactional_id: IdArgument,
    root: RootOption,
    number: Annotated[
        int | None, integer_option("--n", text="Abort the open transaction only if it has this number.")
    ] = None,
) -> Output:
    """Abort the open transaction of a transactional id.

    The transaction is aborted before its timeout, and the commit of its owner fails. You can also end a transaction
    that was open in imported Kafka data, with the decision of Kafka if there was one. After that, the topics of the
    transaction cannot be imported again.
    """
    from sparklog.transactions.listing import abort_transaction

    aborted = abort_transaction(open_root(root), transactional_id, number)
    lines = []
    if aborted.n is not None:
        topics = ", which held back " + ", ".join(aborted.topics) if aborted.topics else ""
        lines.append(f"Aborted transaction {aborted.n} of {printable(transactional_id)}{topics}.")
    for part in aborted.kafka:
        verb = "Committed, as Kafka had decided," if part.open.decided == "commit" else "Aborted"
        partition = f"{part.topic}-{part.open.partition}"
        lines.append(f"{verb} Kafka's transaction of {printable(transactional_id)} in {partition}.")
    document = {"id": transactional_id, "n": aborted.n, "topics": aborted.topics, "kafka": _kafka(aborted.kafka)}
    return Output.from_lines(document, *lines)


def _list_kafka(source: OpenLocation, open_only: bool) -> Output:
    from sparklog.kafka.importing.kafka_transactions import kafka_transactional_ids
    from sparklog.kafka.in_place.view import KafkaView

    assert isinstance(source.view, KafkaView)
    shown = [item for item in kafka_transactional_ids(source.view) if item.is_open or not open_only]
    rows = [(item.transactional_id, item.coordinator, item.producer_id, item.transaction_state) for item in shown]
    headings = ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE")
    return Output(json_value(shown), lambda: print_table(headings, rows))


def _describe_kafka(source: OpenLocation, transactional_id: str) -> Output:
    from sparklog.kafka.importing.kafka_transactions import find_transactional_id, producer_states
    from sparklog.kafka.in_place.view import KafkaView

    assert isinstance(source.view, KafkaView)
    item = find_transactional_id(source.view, transactional_id)
    failures: list[SparklogError] = []
    producers = [state for state in producer_states(source.view, failures) if state.producer_id == item.producer_id]

    document = {**json_value(item), "producers": json_value(producers)}
    return Output(document, lambda: _show_kafka(item, producers), failures)


def _show_kafka(item: KafkaTransactionalId, producers: Sequence[KafkaProducerState]) -> None:
    facts = {
        "Coordinator": item.coordinator,
        "TransactionalId": item.transactional_id,
        "ProducerId": item.producer_id,
        "ProducerEpoch": item.producer_epoch,
        "TransactionState": item.transaction_state,
        "TransactionTimeoutMs": item.transaction_timeout_ms,
        "CurrentTransactionStartTime": None if item.start_ms is None else iso_time(item.start_ms),
        "TopicPartitions": ",".join(item.partitions),
    }
    print("\t".join(f"{name}: {printable(str(value))}" for name, value in facts.items()))
    rows = [
        (
            *(part.partition, part.producer_epoch, part.coordinator_epoch, part.last_sequence),
            *(iso_time(part.last_timestamp_ms), part.current_transaction_start_offset, part.snapshot),
        )
        for part in producers
    ]
    if rows:
        print_table(PRODUCER_HEADINGS, rows)


def _show(transaction: TransactionDescription) -> None:
    reason = f" ({printable(transaction.reason)})" if transaction.reason else ""
    batch = "" if transaction.batch is None else f"\tBatch: {transaction.batch}"
    print(
        f"TransactionalId: {printable(transaction.id)}\tState: {transaction.state}\t"
        f"Latest: {_latest_decision(transaction)}{reason}{batch}\tInstance: {printable(transaction.instance or '-')}"
    )
    if transaction.held:
        rows = [
            (part.topic, part.partition, part.n, part.first, part.end, _seconds(part.age_ms), _seconds(part.timeout_ms))
            for part in transaction.held
        ]
        print_table(("TOPIC", "PARTITION", "N", "FIRST", "END", "AGE", "TIMEOUT"), rows)
    if transaction.kafka:
        print("Open transactions in imported Kafka data:")
        open_in_kafka = []
        for topic, part in ((item.topic, item.open) for item in transaction.kafka):
            since = None if part.start_ms is None else iso_time(part.start_ms)
            state = (since, _seconds(part.timeout_ms), part.decided or None)
            open_in_kafka.append((topic, part.partition, part.producer, part.first, part.end, *state))
        print_table(("TOPIC", "PARTITION", "PRODUCER", "FIRST", "END", "SINCE", "TIMEOUT", "DECIDED"), open_in_kafka)
    for waiting in transaction.waiting:
        print(
            f"{waiting.topic}: transaction {waiting.n} is decided; the next commit or `sparklog retain` records "
            "the decision"
        )
    if transaction.pending:
        pending = [
            (item.group, topic, partition, offset, item.n, OUTCOME_NAMES[item.committed], _seconds(item.age_ms))
            for item in transaction.pending
            for topic, partition, offset in item.offsets
        ]
        print_table(("GROUP", "TOPIC", "PARTITION", "OFFSET", "N", "STATE", "AGE"), pending)


def _document(transaction: TransactionDescription) -> dict[str, object]:
    names = {"held": "open", "waiting": "unrecorded"}
    shown = {names.get(name, name): value for name, value in json_value(transaction).items()}
    pending, _ = shown.pop("pending"), shown.pop("isOpen")
    for item in pending:
        item["offsets"] = [dict(zip(OFFSET, offset, strict=True)) for offset in item["offsets"]]
    return {**shown, "kafka": _kafka(transaction.kafka), "pendingOffsets": pending}


def _kafka(parts: Sequence[KafkaTransaction]) -> list[dict[str, object]]:
    from sparklog.log.state.kafka_source import KAFKA_OPEN_JSON

    return [{"topic": part.topic, **KAFKA_OPEN_JSON.to_json(part.open)} for part in parts]


def _latest_decision(transaction: TransactionDescription) -> str:
    return "-" if transaction.outcome is None else f"{transaction.newest} {transaction.outcome}"


def _seconds(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.1f} s"
