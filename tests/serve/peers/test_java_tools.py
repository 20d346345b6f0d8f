"""Java's command line tools print the same for this server and for a broker."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import sparklog
from tests.kafka_broker import Broker
from tests.serve.peers import tool_cases
from tests.serve.peers.calls import noting
from tests.serve.peers.golden import Served, served
from tests.serve.peers.peer import Peer
from tests.serve.peers.tool_cases import TOOL_CASES, tool_files

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "transactions": TOOLS + "TransactionsCommand",
    "topics": TOOLS + "TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "offsets": TOOLS + "GetOffsetShell",
    "delete-records": TOOLS + "DeleteRecordsCommand",
    "produce": TOOLS + "ConsoleProducer",
    "consume": TOOLS + "consumer.ConsoleConsumer",
    "groups": TOOLS + "consumer.group.ConsumerGroupCommand",
    "all-groups": TOOLS + "GroupsCommand",
    "producer-perf": TOOLS + "ProducerPerformance",
    "consumer-perf": TOOLS + "ConsumerPerformance",
    "log-dirs": TOOLS + "LogDirsCommand",
}
OF_A_PLACE = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\(\d+\)", "(ID)"),
    (r"Leader: \d+\tReplicas: \d+\tIsr: \d+\tElr: .*", "Leader: ID"),
    (r"TopicId: \S+\s", ""),
    (r"min\.insync\.replicas=1,?", ""),
    (r"synonyms=\{.*?\}", ""),
    (r"member-\S+", "MEMBER"),
    (r"console-consumer-\d+", "A-GROUP-OF-ITS-OWN"),
    (r"-{3,}|[ \t]+", " "),
)
"""Text that differs between clusters: addresses, ids, and broker defaults."""


class Both:
    """A server and a broker that get the same commands."""

    def __init__(self, java: Peer, server: Served, broker: Broker) -> None:
        self._java = java
        self._server = server
        self._addresses = (str(server.address), broker.address)

    def say(self, tool: str, *arguments: str, stdin: str = "", fails: bool = False, group: str = "") -> str:
        """Run a tool with both. Return its output, which must be the same.

        With `fails`, the errors may differ. With `group`, only the lines about this group are compared, because other
        tests may have left groups.
        """
        answers = []
        with noting(self._java.name, self._server):
            for address in self._addresses:
                command = ["--bootstrap-server", address, *arguments]
                answers.append(self._java.run(CLASSES[tool], command, stdin))
        ours, theirs = answers
        assert ours["status"] == theirs["status"], ours
        if fails:
            assert ours["status"] or "Error" in ours["out"]
            return str(ours["out"] + ours["err"])
        lines, expected = (
            [line for line in plain(each["out"]) if not group or group in line.split()] for each in answers
        )
        assert lines == expected
        return str(ours["out"])


def plain(text: str) -> list[str]:
    """Return sorted lines without the text that differs between clusters."""
    for pattern, word in OF_A_PLACE:
        text = re.sub(pattern, word, text)
    return sorted(line.strip() for line in text.splitlines() if line.strip())


@pytest.fixture
def both(java: Peer, writable: tuple[Served, Any], broker: Broker) -> Both:
    return Both(java, writable[0], broker)


def produced(both: Both, topic: str, *options: str) -> None:
    """Write 50 records with keys and headers with the console producer, to the same partitions of both."""
    lines = "".join(f"h=v{number}|k{number % 5}:v{number}\n" for number in range(50))
    parsing = ("parse.key=true", "key.separator=:", "parse.headers=true", "headers.delimiter=|")
    settings = [word for setting in (*parsing, "headers.key.separator==") for word in ("--property", setting)]
    both.say("produce", "--topic", topic, *settings, *options, stdin=lines)


def test_topics_and_configs(both: Both) -> None:
    topic = ("--topic", "tools")
    entity = ("--entity-type", "topics", "--entity-name", "tools")
    both.say("topics", "--create", *topic, "--partitions", "2", "--config", "retention.ms=100000000000")
    assert "exist" in both.say("topics", "--create", *topic, fails=True)
    both.say("topics", "--create", *topic, "--if-not-exists")
    assert "Partition: 1" in both.say("topics", "--describe", *topic)
    both.say("topics", "--describe", "--topic", "missing", fails=True)
    both.say("topics", "--alter", *topic, "--partitions", "3")
    both.say("topics", "--alter", *topic, "--partitions", "2", fails=True)
    both.say("topics", "--create", "--topic", "unknown", "--config", "bad.config=1", fails=True)
    assert "Partition: 2" in both.say("topics", "--describe", *topic)
    assert "retention.ms=100000000000" in both.say("configs", *entity, "--describe")
    both.say("configs", *entity, "--alter", "--add-config", "max.message.bytes=65536")
    both.say("configs", *entity, "--alter", "--add-config", "max.message.bytes=x", fails=True)
    both.say("configs", *entity, "--alter", "--delete-config", "retention.ms")
    described = both.say("configs", *entity, "--describe")
    assert "max.message.bytes=65536" in described
    assert "retention.ms" not in described
    both.say("topics", "--delete", *topic)
    both.say("topics", "--delete", *topic, fails=True)


def test_records_and_offsets(both: Both, tmp_path: Path) -> None:
    topic = ("--topic", "console")
    both.say("topics", "--create", *topic, "--partitions", "3")
    for number, options in enumerate(((), ("--compression-codec", "zstd"), PLAIN, WITHOUT_ANSWERS)):
        produced(both, "console", *options)
        both.say("offsets", *topic)
        consumed = both.say("consume", *topic, "--from-beginning", "--max-messages", f"{50 * number + 50}", *PRINTED)
        assert len(consumed.splitlines()) == 50 * number + 50
    assert both.say("offsets", *topic, "--time", "earliest").split() == ["console:0:0", "console:1:0", "console:2:0"]
    both.say("offsets", *topic, "--time", "1700000000000")
    both.say("offsets", "--topic-partitions", "console:0,console:2-3", "--time", "latest")
    both.say("consume", *topic, "--partition", "1", "--offset", "7", "--max-messages", "20", *PRINTED)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": "console", "partition": 1, "offset": 5}], "version": 1}))
    both.say("delete-records", "--offset-json-file", str(plan))
    assert "console:1:5" in both.say("offsets", *topic, "--time", "earliest")
    both.say("consume", *topic, "--partition", "1", "--offset", "earliest", "--max-messages", "20", *PRINTED)


PRINTED = tuple(
    word
    for name in ("key", "headers", "partition", "offset")
    for word in ("--property", f"print.{name}=true", "--consumer-property", "group.protocol=classic")
)
PLAIN = ("--producer-property", "enable.idempotence=false", "--request-required-acks", "1")
WITHOUT_ANSWERS = ("--producer-property", "enable.idempotence=false", "--producer-property", "acks=0")


def test_groups(both: Both) -> None:
    topic, group = ("--topic", "lagging"), ("--group", "lag")
    both.say("topics", "--create", *topic, "--partitions", "3")
    produced(both, "lagging")
    both.say("consume", *topic, *group, "--from-beginning", "--max-messages", "50", *PRINTED)
    produced(both, "lagging")
    assert "lag" in both.say("groups", "--list", group="lag").split()
    assert "Empty" in both.say("groups", "--list", "--state", group="lag")
    assert "lagging 0 10 20 10" in " ".join(both.say("groups", "--describe", *group).split())
    for options in (("--state",), ("--members", "--verbose")):
        both.say("groups", "--describe", *group, *options)
    steps = (
        ("--topic", "lagging", "--to-earliest", "--dry-run"),
        ("--topic", "lagging:0", "--to-offset", "3", "--execute"),
        ("--all-topics", "--shift-by", "-2", "--execute"),
        ("--all-topics", "--to-datetime", "2020-01-01T00:00:00.000", "--execute"),
        ("--all-topics", "--to-latest", "--execute"),
        ("--all-topics", "--to-current", "--export", "--dry-run"),
    )
    for step in steps:
        both.say("groups", "--reset-offsets", *group, *step)
        both.say("groups", "--describe", *group)
    both.say("groups", "--delete-offsets", *group, *topic)
    both.say("groups", "--describe", *group)
    both.say("groups", "--delete", *group)
    assert "lag" not in both.say("groups", "--list", group="lag").split()


@contextmanager
def members(addresses: tuple[str, ...], topic: str) -> Iterator[None]:
    """Run a member of the group `busy` at each address."""
    from kafka import KafkaConsumer

    leaving, assigned = Event(), [Event() for _ in addresses]

    def consume(number: int) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=addresses[number],
            group_id="busy",
            client_id="member",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        while not leaving.is_set():
            if consumer.poll(100):
                consumer.commit()
                assigned[number].set()
        consumer.close()

    threads = [Thread(target=consume, args=(number,), daemon=True) for number in range(len(addresses))]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(60) for event in assigned)
        yield
    finally:
        leaving.set()
        for thread in threads:
            thread.join(30)


def test_a_group_with_members(both: Both, writable: tuple[Served, Any], broker: Broker) -> None:
    topic, group = ("--topic", "watched"), ("--group", "busy")
    both.say("topics", "--create", *topic)
    produced(both, "watched")
    with members((str(writable[0].address), broker.address), "watched"):
        assert "Stable" in both.say("groups", "--describe", *group, "--state")
        assert "watched 0 50 50 0" in " ".join(both.say("groups", "--describe", *group).split())
        assert "watched:0" in both.say("groups", "--describe", *group, "--members", "--verbose")
        both.say("groups", "--list", "--state", "Stable", group="busy")
        both.say("all-groups", "--list", "--consumer", group="busy")
        both.say("groups", "--list", "--type", "classic", group="busy")
        both.say("groups", "--delete", *group, fails=True)
        both.say("groups", "--delete-offsets", *group, *topic, fails=True)
        both.say("groups", "--reset-offsets", *group, *topic, "--to-earliest", "--execute")


def test_performance_tools_and_log_dirs(java: Peer, both: Both, writable: tuple[Served, Any]) -> None:
    server, root = writable
    root.create_topic("fast", partitions=2)
    producer = ("acks=all", "compression.type=lz4", f"bootstrap.servers={server.address}")
    options = ("--topic", "fast", "--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    with noting(java.name, server):
        printed = java.tool(CLASSES["producer-perf"], *options, "--producer-props", *producer)
        assert "20000 records sent" in printed
        where = ("--bootstrap-server", str(server.address), "--topic", "fast", "--messages", "20000")
        row = java.tool(CLASSES["consumer-perf"], *where).splitlines()[1].split(", ")
        assert int(row[4]) == 20_000
        dirs = java.tool(CLASSES["log-dirs"], "--bootstrap-server", str(server.address), "--describe")
    (directory,) = json.loads(dirs.splitlines()[-1])["brokers"][0]["logDirs"]
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert sizes["fast-0"] > 100_000


def test_kafka_transactions_describes_an_open_transaction(java: Peer, writable: tuple[Served, Any]) -> None:
    from kafka import KafkaProducer

    server, root = writable
    root.create_topic("described")
    producer = KafkaProducer(bootstrap_servers=str(server.address), transactional_id="described-id")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("described", b"1", partition=0).get(20)

    def run(*arguments: str) -> list[list[str]]:
        answer = java.run(CLASSES["transactions"], ["--bootstrap-server", str(server.address), *arguments], "")
        assert (answer["status"], answer["err"]) == (0, ""), answer
        return [line.split() for line in answer["out"].splitlines() if line.strip()]

    header, *rows = run("list")
    assert header[0] == "TransactionalId"
    (listed,) = (row for row in rows if row[0] == "described-id")
    assert listed[-1] == "Ongoing"
    described = dict(zip(*run("describe", "--transactional-id", "described-id"), strict=True))
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == "described-0"
    producers = dict(zip(*run("describe-producers", "--topic", "described", "--partition", "0"), strict=True))
    assert (producers["ProducerId"], producers["CurrentTransactionStartOffset"]) == (described["ProducerId"], "0")
    producer.commit_transaction()
    described = dict(zip(*run("describe", "--transactional-id", "described-id"), strict=False))
    assert described["TransactionState"] == "CompleteCommit"
    producer.close()


@pytest.fixture(scope="module")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A writable server for the cases of `tool_cases`, and the directory of their files."""
    folder = tmp_path_factory.mktemp("tools")
    root = sparklog.open(folder / "root", create=True)
    root.create_topic("t", partitions=2).append({"value": ["a", "b", "c"], "partition": [0, 0, 1]})
    root.create_topic("deleted").append({"value": ["a", "b"]})
    for name in ("latency", "made", "perf"):
        root.create_topic(name)
    sparklog.Groups(root).group("g").alter({"t": {0: 1}})
    for name, content in tool_files(str(folder / "root")).items():
        (folder / name).write_text(content)
    with served(folder / "root", writable=True) as server:
        yield server, folder


@pytest.mark.parametrize("tool", sorted({case.tool for case in TOOL_CASES}))
def test_a_tool_prints_a_result_or_a_clear_error(java: Peer, tools_server: tuple[Served, Path], tool: str) -> None:
    server, folder = tools_server
    for case in TOOL_CASES:
        if case.tool == tool:
            line = case.arguments.replace("SERVER", str(server.address)).replace("FILES", str(folder))
            answer = java.run(tool_cases.CLASSES[tool], shlex.split(line), case.stdin)
            # Some tools print the exception with which the test's JVM ends them.
            output = re.sub(r"null\s+Clients\$Ended", "", answer["out"] + answer["err"]).strip()
            expected = case.expected.replace("SERVER", str(server.address)).replace("FILES", str(folder))
            assert re.search(expected, output), (line, answer)
            assert (answer["status"], "\n\tat " in output) == (case.status, case.is_traced), (line, answer)
