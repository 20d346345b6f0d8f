"""The client matrix: run releases of Kafka clients against the server and a real broker, and compare the results.

`python -m tests.serve.peers.matrix` runs all clients, stores the results in results.json, and writes
docs/reference/clients.md. `--only sarama,java-4` runs the clients whose names start with these words, and keeps the
stored results of the others. Exit code 1: a result differs from the broker's without an explanation in `EXPLANATIONS`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from sparklog.version import __version__
from tests.fixture_data import fixture_tree
from tests.kafka_broker import Broker
from tests.kafka_tools import KAFKA_VERSION, Missing
from tests.serve.peers.checks import (
    CHECKS,
    Run,
    Target,
    existing_counts,
    fill_broker,
    fill_root,
    unequal,
)
from tests.serve.peers.golden import served
from tests.serve.peers.peer import Failed
from tests.serve.peers.releases import CLIENTS, Client, java

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "clients.md"
RESULTS = Path(__file__).with_name("results.json")
EQUAL, UNEQUAL, UNSUPPORTED, ABSENT = "equal", "differs", "fails on both", "not supported"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check: a verdict and, unless the results are equal, the reason."""

    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The results of a client. `missing`: the reason why it was not run."""

    client: str
    release: str
    date: str
    sparklog: str
    results: Mapping[str, Result]
    missing: str = ""

    @property
    def label(self) -> str:
        return f"{self.client} {self.release}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.serve.peers.matrix", description=__doc__)
    parser.add_argument("--only", default="", help="Names of clients to run, separated with commas. Default: all.")
    parser.add_argument("--checks", default="", help="Checks to run, separated with commas. Default: all.")
    parser.add_argument("--jobs", type=int, default=3, help="Run this many clients at the same time. Default: 3.")
    options = parser.parse_args(arguments)
    checks = [name for name in options.checks.split(",") if name]
    chosen = [
        client
        for client in CLIENTS
        if client.label.lower().replace(" ", "-").startswith(tuple(options.only.lower().split(",")))
    ]
    with targets() as (serve, broker), ThreadPoolExecutor(options.jobs) as threads:
        for done in as_completed([threads.submit(run, client, serve, broker, checks) for client in chosen]):
            print_row(done.result())
            # Another process may have stored the results of other clients.
            store(with_row(stored(), done.result()))
    different = unexplained(stored())
    print("\n".join([*different, f"{len(different)} unexplained differences"]))
    return int(bool(different))


def print_row(row: Row) -> None:
    print(f"{row.label}: {row.missing}", flush=True)
    for check, result in row.results.items():
        print(f"  {check}: {result.verdict} {result.reason}", flush=True)


def stored() -> list[Row]:
    return [
        Row(**{**values, "results": {name: Result(*result) for name, result in values["results"].items()}})
        for values in json.loads(RESULTS.read_text())
    ]


def with_row(rows: Sequence[Row], new: Row) -> list[Row]:
    """Replace the row of a client. The results of checks that were not run again stay."""
    results = {row.label: row.results for row in rows}
    merged = {} if new.missing else {**results.get(new.label, {}), **new.results}
    return [*(row for row in rows if row.label != new.label), replace(new, results=merged)]


def store(rows: Sequence[Row]) -> None:
    """Store the results of the clients in `CLIENTS`, and write the page."""
    found = {row.label: row for row in rows}
    chosen = [
        found.get(client.label) or Row(client.name, client.release, "", "", {}, "It was not run yet.")
        for client in CLIENTS
    ]
    values = [
        {**asdict(row), "results": {name: astuple(result) for name, result in row.results.items()}} for row in chosen
    ]
    RESULTS.write_text(json.dumps(values, indent=1) + "\n")
    PAGE.write_text(page(chosen))


def unexplained(rows: Sequence[Row]) -> list[str]:
    """Describe each difference without an explanation."""
    return [
        f"{row.label}, {check}: {result.reason}"
        for row in rows
        for check, result in row.results.items()
        if result.verdict == UNEQUAL and explanation(row, check) is None
    ]


@contextmanager
def targets() -> Iterator[tuple[Target, Target]]:
    """Run the server and the broker, both with the existing topics."""
    fixtures = fixture_tree()
    counts = existing_counts(fixtures)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="client-matrix-")))
        fill_root(folder / "root", fixtures)
        broker = Broker(folder / "broker")
        stack.callback(broker.stop)
        fill_broker(broker, fixtures, folder / "files")
        server = stack.enter_context(served(folder / "root", writable=True))
        addresses = (str(server.address), broker.address)
        clients = [stack.enter_context(java(KAFKA_VERSION)) for _ in addresses]
        serve, other = (
            Target(address, client, folder, counts) for address, client in zip(addresses, clients, strict=True)
        )
        yield serve, other


def run(client: Client, serve: Target, broker: Target, checks: Sequence[str] = ()) -> Row:
    """Run the checks of a client against the server and the broker at the same time."""
    about = (client.name, client.release, time.strftime("%Y-%m-%d", time.gmtime()), __version__)
    chosen = {name: check for name, check in client.checks.items() if name in checks or not checks}
    try:
        with client.start():
            pass
    except Missing as missing:
        return Row(*about, {}, str(missing))
    applicable = {name: check for name, check in chosen.items() if name not in client.lacks}
    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(lambda target: run_checks(client, target, applicable), (serve, broker))
    results = {
        name: compared(ours[name], theirs[name]) if name in ours else Result(ABSENT, client.lacks[name])
        for name in chosen
    }
    return Row(*about, results)


Outcome = tuple[Any, str]
"""The value of a check, and the error of a check that failed."""


def run_checks(client: Client, target: Target, checks: Mapping[str, Callable[[Run], Any]]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    with ExitStack() as stack:
        at = Run(client.start, client.label, target, stack)
        for name, check in checks.items():
            try:
                with at.check():
                    found[name] = (check(at), "")
            except Failed as failed:
                found[name] = (None, str(failed) or "failed")
            except Exception as error:  # noqa: BLE001 - the result of this check
                found[name] = (None, repr(error))
    return found


def compared(serve: Outcome, broker: Outcome) -> Result:
    """Compare the results of a check."""
    (value, error), (expected, expected_error) = serve, broker
    if error and expected_error:
        return Result(UNSUPPORTED, expected_error)
    if error or expected_error:
        return Result(UNEQUAL, f"fails: {error}" if error else f"fails only on the broker: {expected_error}")
    return Result(EQUAL) if value == expected else Result(UNEQUAL, unequal(value, expected))


_EMPTY_BATCH = (
    "At the broker, {} does not get past a batch without records at the end of a segment, because a broker's response "
    "ends with the segment. The server's response continues with the next segment."
)
_KAFKA_GO = f"kafka-go returns transaction markers as records from both servers. {_EMPTY_BATCH.format('it')}"
_NO_RESET = "{} returns the error of an offset below the log start offset to its caller."
EXPLANATIONS: Mapping[tuple[str, str], str] = {
    ("Sarama", "Below start"): _NO_RESET.format("Sarama"),
    ("kafka-go", "Compacted"): _KAFKA_GO,
    ("kafka-go", "Committed"): _KAFKA_GO,
    ("KafkaJS", "Compacted"): _EMPTY_BATCH.format("KafkaJS"),
    ("KafkaJS", "Committed"): _EMPTY_BATCH.format("KafkaJS"),
    ("kafka-python 2.2.15", "acks 0, 1"): "With `acks=0`, this release completes sends without a request.",
    ("rskafka", "Compacted"): "rskafka cannot read transaction markers.",
    ("rskafka", "Below start"): _NO_RESET.format("rskafka"),
    ("rskafka", "Earliest"): "rskafka cannot read headers with the value null.",
}
"""The reasons for differences and for failures on both servers, by client (with or without its release) and check."""


def explanation(row: Row, check: str) -> str | None:
    keys = ((row.label, check), (row.client, check), ("", check))
    return next((EXPLANATIONS[key] for key in keys if key in EXPLANATIONS), None)


def page(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    dates, versions = (sorted({getattr(row, name) for row in rows} - {""}) for name in ("date", "sparklog"))
    notes: dict[str, int] = {}

    def cell(row: Row, check: str) -> str:
        result = row.results.get(check)
        if result is None:
            return ""
        if result.verdict == EQUAL:
            return "yes"
        reason = explanation(row, check) or result.reason
        word = "differs" if result.verdict == UNEQUAL else "no"
        return f"{word} [{notes.setdefault(_plain(reason), len(notes) + 1)}](#reasons)"

    done = [row for row in rows if not row.missing]
    libraries = [row for row in done if row.results.keys() & CHECKS.keys()]
    programs = [row for row in done if row not in libraries]
    lines = [
        _BEGINNING.format(
            kafka=KAFKA_VERSION, versions=", ".join(versions), dates=" to ".join(dates[:1] + dates[1:][-1:])
        ),
        f"| Client | Release | {' | '.join(CHECKS)} |",
        "|---|---|" + "---|" * len(CHECKS),
        *(
            f"| {row.client} | {row.release} | {' | '.join(cell(row, check) for check in CHECKS)} |"
            for row in libraries
        ),
        _CHECKS,
    ]
    if programs:
        lines += ["## Programs", "", "| Program | Release | Check | Result |", "|---|---|---|---|"]
        lines += [
            f"| {row.client} | {row.release} | {check} | {cell(row, check)} |"
            for row in programs
            for check in row.results
        ]
        lines += [""]
    missing = [f"| {row.client} | {row.release} | {_plain(row.missing)} |" for row in rows if row.missing]
    if missing:
        lines += ["## Not run", "", "| Client | Release | Reason |", "|---|---|---|", *missing, ""]
    if notes:
        lines += ["## Reasons", "", *(f"{number}. {reason}" for reason, number in notes.items()), ""]
    return "\n".join([*lines, _SUITES])


def _plain(text: str) -> str:
    """Return text that is safe in a table or a list of the page."""
    return " ".join(text.split()).replace("|", "\\|")[:400]


_BEGINNING = """# Kafka clients

Every night, one program per client runs the same steps against `sparklog serve --writable` and against an Apache Kafka
{kafka} broker with the same data. The results are compared step by step and record by record: partition, offset,
timestamp, timestamp type, key, value and headers. `make test-clients` runs the programs and writes this page.

Last run: {dates}, sparklog {versions}.

| Cell | Meaning |
|---|---|
| yes | the results at the server and at the broker are equal |
| differs | the results are not equal, for the reason with this number |
| no | the client does not have the feature, or the step also fails at the broker |

## Results
"""
_CHECKS = """
| Column | Check |
|---|---|
| Records | produce 401 records with keys, headers, null values and empty values to two partitions |
| Codecs | produce with gzip, snappy, lz4 and zstd |
| acks 0, 1 | produce with `acks=0` and with `acks=1`. The other checks use `acks=all` |
| Idempotent | produce with an idempotent producer |
| Transactions | commit and abort transactions, with the offsets of a group |
| Earliest | read all records of topics with all codecs and with `LogAppendTime` |
| By time | look up the first offset, the last offset and the offsets for timestamps |
| Committed | read committed, aborted and open transactions with both isolation levels |
| Below start | read from an offset below the log start offset |
| Compacted | read compacted topics with gaps between offsets, with and without transactions |
| Group | two members share partitions, one member leaves, a later member resumes from the committed offsets |
| Killed | one member is killed, and the other member gets its partitions after the session timeout |
| Static | a static member restarts and keeps its partitions |
| New protocol | the steps of the column Group with `group.protocol=consumer` |
| Admin | create, list, describe, alter and delete a topic; describe and delete a group; delete records |
"""

_SUITES = """## Web interface

Kafdrop (development version 4.2.1) was run once, on 2026-11-29, at the server and at a broker with the same topics,
transactions and groups of both protocols, and at a server with `--users`. Kafdrop was built without the serializers for
Avro and Protobuf schema registries. The pages and the JSON for the cluster, brokers, topics, messages, consumers and
ACLs are equal except for the differences in the table. Kafdrop could also create and delete a topic, and write a
message.

| Difference | Reason |
|---|---|
| the topics `__consumer_offsets` and `__transaction_state` are missing | the server does not have these topics |
| offsets of topics with transactions are lower | a [transaction marker](serve.md) does not have an offset |
| topics do not have the config `min.insync.replicas` | a 4.1.0 broker sets this config for the cluster |
| the ACL page is not empty with `--users` | it lists the permissions in the users file |

## Test suites of clients

The integration tests of five clients were run once, on 2026-11-29, against `sparklog serve`. The tests of franz-go and
Sarama, and the failed tests of librdkafka, were also run against a broker. Topics had one replica. Not run: tests that
need several brokers, broker restarts or containers, tests of TLS, Kerberos, OAuth and share groups, and most tests of
ACLs.

Of the failed tests of librdkafka, only the subtests in the table failed.

| Suite | Passed | Failed |
|---|---|---|
| franz-go (development version) | 29 | 0 |
| Sarama (development version) | 52 | 3 |
| librdkafka (development version) | 85 | 4 |
| librdkafka, tests of groups with `group.protocol=consumer` | 22 | 1 |
| kafka-python (development version after 3.0.12) | 53 | 2 |
| aiokafka (tests after 0.14.0) | 167 | 6 |

| Failed test | Reason |
|---|---|
| Sarama: `TestFuncAdminQuotas` | the server does not have quotas |
| Sarama: `TestFuncAdminIncrementalAlterConfigs` | changes `log.cleaner.backoff.ms` of a broker |
| Sarama: `TestFuncAdminUpdateFeatures` | the features of the server cannot be changed |
| librdkafka: `0077_compaction` | requires automatic compaction. It also failed at a broker |
| librdkafka: `0081_admin` | changes configs of a broker and a group, and SCRAM users |
| librdkafka: `0103_transactions` | the last subtest expects that a [transaction marker](serve.md) has an offset |
| librdkafka: `0113_cooperative_rebalance` | requires a `group.initial.rebalance.delay.ms` above 100 |
| librdkafka: `0045_resubscribe_with_regex` | expects the topics that match an expression after the other topics |
| kafka-python: `test_create_describe_delete_acls` | requires ACLs. It also fails at a broker without an authorizer |
| kafka-python: `test_create_partitions` | assigns replicas to broker 0. It also fails at a broker with another id |
| aiokafka: `test_consumer_invalid_session_timeout` | ran with a low minimum timeout. It also fails at a broker |
| aiokafka: `test_exclude_internal_topics` | the server does not have the topic `__consumer_offsets` |
| aiokafka: four tests of transactional consumers | they expect that a [transaction marker](serve.md) has an offset |
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
