"""`sparklog transactions`: list, describe, abort."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import JsonOption, RootOption, example
from sparklog.cli.terminal import complain, print_table, printable
from sparklog.log.journal.clock import iso_time

if TYPE_CHECKING:
    from sparklog.errors import SparklogError
    from sparklog.log.state.kafka_source import KafkaOpen
    from sparklog.transactions.listing import KafkaTransaction, TransactionDescription

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, describe and abort transactions.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Transactional id.")]


@app.command("list", epilog=example("sparklog transactions list --root /data/log"))
def list_(
    root: RootOption,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that hold back a topic.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the transactional ids, and how the newest transaction of each stands."""
    from sparklog.cli.places import open_root
    from sparklog.transactions.listing import list_transactions

    failures: list[SparklogError] = []
    everything = list_transactions(open_root(root), failures)
    found = [item for item in everything if item.held or item.kafka or not open_only]
    rows = [(item.id, _newest(item), item.state, ",".join(_topics(item)) or "-") for item in found]
    if as_json:
        print(json.dumps([document(item) for item in found]))
    elif rows:
        print_table(("TRANSACTIONAL-ID", "NEWEST", "STATE", "HOLDS-BACK"), rows)
    complain(failures)


@app.command(epilog=example("sparklog transactions describe orders-job --root /data/log"))
def describe(transactional_id: IdArgument, root: RootOption, as_json: JsonOption = False) -> None:
    """Show what is decided, and what is open: where the last stable offset stops, since when, and until when."""
    from sparklog.cli.places import open_root
    from sparklog.transactions.listing import describe_transaction

    failures: list[SparklogError] = []
    found = describe_transaction(open_root(root), transactional_id, failures)
    if as_json:
        print(json.dumps(document(found)))
    else:
        _show(found)
    complain(failures)


@app.command(epilog=example("sparklog transactions abort orders-job --root /data/log"))
def abort(
    transactional_id: IdArgument,
    root: RootOption,
    number: Annotated[
        int | None, typer.Option("--n", metavar="N", min=0, help="Only if this is the number of the open one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Abort the open transaction of an id without waiting for its timeout; its owner's commit fails then.

    One that an import found open in Kafka's data ends, too (as Kafka had decided, if it had); no import can go on with
    its topics then.
    """
    from sparklog.cli.places import open_root
    from sparklog.transactions.listing import abort_transaction

    found = abort_transaction(open_root(root), transactional_id, number)
    if as_json:
        print(json.dumps({"id": transactional_id, "n": found.n, "topics": found.topics, "kafka": _kafka(found.kafka)}))
        return
    if found.n is not None:
        held = ", it held back " + ", ".join(found.topics) if found.topics else ""
        print(f"Aborted transaction {found.n} of {printable(transactional_id)}{held}.")
    for each in found.kafka:
        how = "Committed, as Kafka had decided," if each.open.decided == "commit" else "Aborted"
        print(f"{how} Kafka's transaction of {printable(transactional_id)} in {each.topic}-{each.open.partition}.")


def _show(found: TransactionDescription) -> None:
    reason = f" ({printable(found.reason)})" if found.reason else ""
    batch = "" if found.batch is None else f"\tBatch: {found.batch}"
    print(
        f"TransactionalId: {printable(found.id)}\tState: {found.state}\tNewest: {_newest(found)}{reason}{batch}"
        f"\tInstance: {printable(found.instance or '-')}"
    )
    if found.held:
        rows = [
            (held.topic, held.partition, held.n, held.first, held.end, _seconds(held.age_ms), _seconds(held.timeout_ms))
            for held in found.held
        ]
        print_table(("TOPIC", "PARTITION", "N", "FIRST", "END", "AGE", "TIMEOUT"), rows)
    if found.kafka:
        print("Kafka's, left open in what was imported:")
        of_kafka = [
            (each.topic, each.open.partition, each.open.producer, each.open.first, each.open.end, *_known(each.open))
            for each in found.kafka
        ]
        print_table(("TOPIC", "PARTITION", "PRODUCER", "FIRST", "END", "SINCE", "TIMEOUT", "DECIDED"), of_kafka)
    for waiting in found.waiting:
        print(f"{waiting.topic}: {waiting.n} is decided and recorded by the next commit or by jobs/retain.py")
    if found.pending:
        pending = [
            (item.group, topic, partition, offset, item.n, _outcome(item.committed), _seconds(item.age_ms))
            for item in found.pending
            for topic, partition, offset in item.offsets
        ]
        print_table(("GROUP", "TOPIC", "PARTITION", "OFFSET", "N", "STATE", "AGE"), pending)


def document(found: TransactionDescription) -> dict[str, object]:
    """One id as JSON."""
    return {
        "id": found.id,
        "state": found.state,
        "newest": found.newest,
        "outcome": found.outcome,
        "reason": found.reason,
        "timeMs": found.time_ms,
        "instance": found.instance,
        "batch": found.batch,
        "open": [
            {
                "topic": held.topic,
                "partition": held.partition,
                "n": held.n,
                "first": held.first,
                "end": held.end,
                "version": held.version,
                "ageMs": held.age_ms,
                "timeoutMs": held.timeout_ms,
            }
            for held in found.held
        ],
        "unrecorded": [{"topic": item.topic, "n": item.n, "committed": item.committed} for item in found.waiting],
        "kafka": _kafka(found.kafka),
        "pendingOffsets": [
            {
                "group": item.group,
                "n": item.n,
                "committed": item.committed,
                "ageMs": item.age_ms,
                "timeoutMs": item.timeout_ms,
                "offsets": [
                    {"topic": topic, "partition": partition, "offset": offset}
                    for topic, partition, offset in item.offsets
                ],
            }
            for item in found.pending
        ],
    }


def _kafka(held: Sequence[KafkaTransaction]) -> list[dict[str, object]]:
    from sparklog.log.state.kafka_source import KAFKA_OPEN_JSON

    return [{"topic": each.topic, **KAFKA_OPEN_JSON.to_json(each.open)} for each in held]


def _known(found: KafkaOpen) -> tuple[str, str, str]:
    """What Kafka's coordinator knew of it: since when, its timeout, its decision."""
    since = "-" if found.start_ms is None else iso_time(found.start_ms)
    return since, "-" if found.timeout_ms is None else _seconds(found.timeout_ms), found.decided or "-"


def _topics(found: TransactionDescription) -> list[str]:
    own, of_kafka = (held.topic for held in found.held), (held.topic for held in found.kafka)
    return list(dict.fromkeys([*own, *of_kafka]))


def _newest(found: TransactionDescription) -> str:
    return "-" if found.outcome is None else f"{found.newest} {found.outcome}"


def _outcome(committed: bool | None) -> str:
    return {None: "pending", True: "committed", False: "aborted"}[committed]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"
