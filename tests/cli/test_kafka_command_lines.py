"""Commands and Kafka's command lines have the same output for the same log and the same arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog as library
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from tests.cli.conftest import Sparklog
from tests.cli.test_kafka_equivalents import PRODUCED
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = pytest.mark.slow

DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRINTED = (
    "--property print.key=true --property print.headers=true --property print.offset=true",
    "--property print.key=true --property key.separator=\\\\t --property null.literal=NIL",
    "--property print.headers=true --property headers.separator=; --property print.value=false",
    "--property print.timestamp=true --property print.partition=true --property line.separator=|",
    "--consumer-property isolation.level=read_committed --property print.epoch=false --max-messages 2",
)
KEYS = [f"key-{n}" for n in range(40)]
ADD = "cleanup.policy=[compact,delete],retention.ms=86400000,segment.ms=5"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A running broker with a topic of 120 records over 40 keys in three partitions, and a compacted topic."""
    try:
        found = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    with found:
        found.create("orders", 3)
        found.create("kept", 1, {"cleanup.policy": "compact"})
        _produce(found)
        yield found


def _produce(broker: Broker) -> None:
    """Produce with kafka-python, whose default partitioner is the same as Kafka's. `kept` has one record."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.address)
    for value in range(3):
        for key in KEYS:
            producer.send("orders", key=key.encode(), value=f"{key}={value}".encode())
    producer.send("kept", key=b"k", value=b"v")
    producer.flush()
    producer.close()


def offsets_file(folder: Path, *entries: tuple[str, int, int]) -> Path:
    file = folder / "offsets.json"
    partitions = [{"topic": topic, "partition": number, "offset": offset} for topic, number, offset in entries]
    file.write_text(json.dumps({"partitions": partitions, "version": 1}))
    return file


def lows(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("partition: "))


def test_commands_agree_with_a_broker(broker: Broker, sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    log = library.open(root, create=True)
    import_log_dir(log, broker.data, ImportOptions(topics=["orders"]))
    import_log_dir(log, broker.data, ImportOptions(topics=["kept"], configs={"cleanup.policy": "compact"}))

    for key in KEYS:
        assert sparklog("get", "orders", "--key", key, "--root", broker.data).out == f"{key}=2\n"
        assert sparklog("get", "orders", "--key", key).out == f"{key}=2\n"

    said = json.loads(broker.tool(LOG_DIRS, "--describe", "--topic-list", "orders").splitlines()[-1])
    for place in (broker.data, root):
        ours = json.loads(sparklog("log-dirs", "--topic-list", "orders", "--root", place, "--json").out)
        assert (ours.keys(), ours["version"]) == (said.keys(), said["version"])
        assert ours["brokers"][0].keys() == said["brokers"][0].keys()
        here, there = (document["brokers"][0]["logDirs"][0] for document in (ours, said))
        # For a root, unreferenced files are also reported.
        more = {"unreferencedFiles", "unreferencedBytes"} if place == root else set()
        assert here.keys() == there.keys() | more
        wanted = sorted(there["partitions"], key=lambda each: each["partition"])
        found = [{name: each[name] for name in wanted[0]} for each in here["partitions"]]
        assert found == wanted

    file = offsets_file(tmp_path, ("orders", 0, 4), ("orders", 1, -1))
    expected = lows(broker.tool(DELETE_RECORDS, "--offset-json-file", str(file)))
    assert lows(sparklog("delete-records", "--offset-json-file", file).out) == expected
    assert len(expected) == 2
    for entry, error in ((("orders", 2, 10_000), "OffsetOutOfRange"), (("kept", 0, 0), "PolicyViolation")):
        file = offsets_file(tmp_path, entry)
        assert error in broker.tool(DELETE_RECORDS, "--offset-json-file", str(file)).replace(" ", "")
        assert sparklog("delete-records", "--offset-json-file", file, code=1).out == ""

    broker.tool(CONFIGS, "--entity-type", "topics", "--entity-name", "orders", "--alter", "--add-config", ADD)
    sparklog("configs", "alter", "orders", "--add-config", ADD)
    described = broker.tool(CONFIGS, "--entity-type", "topics", "--entity-name", "orders", "--describe")
    ours = {row["name"]: row["value"] for row in json.loads(sparklog("configs", "describe", "orders", "--json").out)}
    theirs = dict(line.split()[0].split("=", 1) for line in described.splitlines() if "sensitive=" in line)
    assert ours == theirs


def test_options_of_the_console_tools(broker: Broker, sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    """The same arguments produce the same records and consume the same lines."""
    file = tmp_path / "lines"
    library.open(root, create=True)
    for number, (words, lines, _) in enumerate(PRODUCED):
        # The new option name was added in Kafka 4.2.
        topic = ("--topic", f"lines-{number}", *shlex.split(words.replace("--reader-", "--")))
        broker.create(f"lines-{number}", 1)
        broker.tool(PRODUCER, *topic, text=lines)
        file.write_text(lines)
        sparklog("produce", *topic, "--num-partitions", 1, "--file", file)
        rows = [
            [json.loads(line) for line in sparklog("consume", f"lines-{number}", "--root", place, "--json").lines]
            for place in (broker.data, root)
        ]
        ours, theirs = ([(row["key"], row["value"], row["headers"]) for row in part] for part in rows)
        assert ours == theirs, words
    for words in PRINTED:
        line = ("--topic", "lines-5", "--from-beginning", *shlex.split(words))
        printed = broker.tool(CONSUMER, *line, "--timeout-ms", "3000")
        assert sparklog("consume", *line, "--root", broker.data).out == printed, words
        assert printed, words


def test_patterns(broker: Broker, sparklog: Sparklog) -> None:
    """Patterns select topics and partitions."""
    root = ("--root", broker.data)
    for line in (
        "--list --topic or.*",
        "--list --topic none.*",
        "--list --topic o.*,kept --exclude-internal",
        "--list --exclude-internal",
    ):
        assert sparklog("topics", *line.split(), *root).lines == broker.tool(TOPICS, *line.split()).split(), line
    for line in (
        "--topic or.*|kept",
        "--topic orders --partitions 0,2",
        "--topic-partitions or.*:1-,kept",
        "--topic-partitions orders:-2",
        "--topic-partitions orders:0-2,:0 --exclude-internal-topics",
        "--topic-partitions kept: --time earliest-local",
        "--exclude-internal-topics --time -4",
    ):
        assert sparklog("offsets", *line.split(), *root).out == broker.tool(OFFSETS, *line.split()), line
