"""Root defaults on the command line: describe, alter, import from server.properties, and use in new topics."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import sparklog as library
from sparklog.log.topic.defaults import DefaultsLog
from sparklog.log.topic.root import Root
from sparklog.maintenance.properties import IMPORTED, NO_EQUIVALENT, NOT_NEEDED, WRONG, broker_settings
from tests.cli.conftest import REPOSITORY, Sparklog

ALTER = ("configs", "alter", "--root-defaults", "--add-config")
DONE = "Completed updating default configs for the root."
DESCRIBE = ("configs", "describe", "--root-defaults")
SHIPPED = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""The settings of config/server.properties in Kafka 4.1, without comments."""


@pytest.fixture
def log(root: Path) -> Root:
    return library.open(root, create=True)


def commands(page: str, heading: str) -> list[list[str]]:
    text = (REPOSITORY / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_the_commands_of_the_guide(sparklog: Sparklog, root: Path, log: Root) -> None:
    for name in ("audit.logins", "orders"):
        log.create_topic(name)
    lines = [
        sparklog(*(str(root) if word == "/data/log" else word for word in words)).lines
        for words in commands("docs/guides/retention.md", "Defaults for all topics")
    ]
    assert lines == [
        [
            "  log.retention.hours: 168 -> 72",
            "  num.partitions: 1 -> 4",
            "Completed updating default configs for the root.",
        ],
        ["  retention.ms: empty -> -1", r"Completed updating default configs for topics audit\..*."],
        [
            "Dynamic default configs for the root are:",
            "  log.retention.hours=72  (DYNAMIC_DEFAULT_BROKER_CONFIG, default 168)",
            "  num.partitions=4  (DYNAMIC_DEFAULT_BROKER_CONFIG, default 1)",
            r"Dynamic default configs for topics audit\..* are:",
            "  retention.ms=-1  (DYNAMIC_DEFAULT_BROKER_CONFIG, default 604800000 (7 days))",
        ],
        [
            "Dynamic configs for topic audit.logins are:",
            "  retention.ms=-1  (DYNAMIC_DEFAULT_BROKER_CONFIG)",
            "Dynamic configs for topic orders are:",
            "  retention.ms=259200000 (3 days)  (DYNAMIC_DEFAULT_BROKER_CONFIG)",
        ],
        ["  log.retention.hours: 72 -> 168", DONE],
    ]


def test_dry_run_changes_nothing_and_prints_the_same_json(sparklog: Sparklog, log: Root) -> None:
    assert sparklog(*DESCRIBE).lines == ["Dynamic default configs for the root are: none"]
    document = json.loads(sparklog(*ALTER, "num.partitions=3", "--dry-run", "--json").out)
    change = {"name": "num.partitions", "before": "1", "after": "3"}
    assert document == {"pattern": None, "dryRun": True, "changes": [change]}
    assert log.defaults().number == -1
    sparklog(*ALTER, "num.partitions=3")
    (row,) = json.loads(sparklog(*DESCRIBE, "--json").out)
    assert (row["name"], row["value"], row["source"]) == ("num.partitions", "3", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    names = {row["name"] for row in json.loads(sparklog(*DESCRIBE, "--all", "--json").out)}
    assert names >= {
        "num.partitions",
        "log.retention.ms",
        "log.retention.hours",
        "message.max.bytes",
        "compression.type",
    }


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((*ALTER, "retention.ms=1"), 1, "set log.retention.ms"),
        ((*ALTER, "log.rentention.ms=1"), 1, "did you mean 'log.retention.ms'"),
        ((*ALTER, "num.partitions=0"), 1, "num.partitions must be an integer from 1 to 100000"),
        ((*ALTER, "retention.ms=1", "--pattern", "a("), 1, "'a(' is not a regular expression"),
        ((*ALTER, "log.segment.delete.delay.ms=1"), 1, "or use force"),
        ((*ALTER, "num.partitions=1", "--topic", "t"), 2, "specify --root-defaults or --topic, not both"),
        ((*DESCRIBE, "t"), 2, "specify --root-defaults or TOPIC, not both"),
        (("import",), 2, "expected the PATH of a log directory or --from-server-properties"),
        (("import", "/x", "--from-server-properties", "/y"), 2, "specify --from-server-properties or PATH, not both"),
        (("import", "--from-server-properties", "/no/such"), 1, "check --from-server-properties"),
    ],
)
def test_invalid_defaults_are_one_line_errors(
    sparklog: Sparklog, words: tuple[str, ...], code: int, message: str
) -> None:
    assert message in sparklog(*words, code=code).err


def test_new_topics_get_the_default_number_of_partitions(sparklog: Sparklog, log: Root, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n")
    sparklog(*ALTER, "num.partitions=3,log.retention.ms=-1")
    created = sparklog("topics", "create", "a")
    assert "with 3 partitions" in created.out
    assert "expire" not in created.err, "the root keeps records"
    assert "with 2 partitions" in sparklog("topics", "create", "b", "--partitions", "2").out
    said = sparklog("produce", "clicks", "--file", str(tmp_path / "lines")).err
    assert "Topic clicks did not exist: created with 3 partitions" in said
    assert len(log.topic("clicks").bounds()) == 3


def test_produce_does_not_create_topics_if_disabled_in_the_root(sparklog: Sparklog, log: Root, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n")
    produce = ("produce", "clicks", "--file", str(tmp_path / "lines"))
    sparklog(*ALTER, "auto.create.topics.enable=false")
    for words in ((), ("--num-partitions", "2")):
        assert "auto.create.topics.enable is false" in sparklog(*produce, *words, code=1).err
    assert log.topics() == []
    sparklog("topics", "create", "clicks")
    sparklog(*produce)


def test_each_setting_of_server_properties_is_reported(sparklog: Sparklog, tmp_path: Path, root: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(SHIPPED)
    rows = broker_settings(SHIPPED, str(file))
    assert [f"{row.name}={row.value}" for row in rows] == SHIPPED.split()
    taken = {row.name: row.value for row in rows if row.verdict == IMPORTED}
    assert taken == {"num.partitions": "1", "log.retention.hours": "168", "log.segment.bytes": "1073741824"}
    assert {row.verdict for row in rows} == {IMPORTED, NOT_NEEDED}
    (dry, real) = commands("docs/guides/import-from-kafka.md", "Broker settings")
    places = {"/opt/kafka/config/server.properties": str(file), "/data/log": str(root)}
    lines = sparklog(*(places.get(word, word) for word in dry)).lines
    assert len(lines) == len(rows) + 1
    assert lines[-1] == "3 of 24 settings would become defaults of the root."
    assert not root.exists()
    assert (
        sparklog(*(places.get(word, word) for word in real)).lines[-1] == "3 of 24 settings are defaults of the root."
    )
    assert library.open(root).defaults().configs == taken


def test_server_properties_are_imported_atomically(sparklog: Sparklog, tmp_path: Path, root: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.retention.hours=week\n")
    said = sparklog("import", "--from-server-properties", str(file), code=1).lines
    assert said[0] == "line 1: num.partitions=3: imported as num.partitions=3"
    assert said[1].startswith("line 2: log.retention.hours=week: not valid: log.retention.hours must be")
    assert not root.exists()
    file.write_text("log.segment.delete.delay.ms=60000\n")
    refused = sparklog("import", "--from-server-properties", str(file), code=1)
    assert refused.lines[0].startswith("line 1: log.segment.delete.delay.ms=60000: not valid: ")
    assert refused.lines[1] == "Nothing was changed: 1 setting of 1 is not valid."
    assert not root.exists()
    sparklog("import", "--from-server-properties", str(file), "--force")
    assert library.open(root).defaults().of_topic("t") == {"file.delete.delay.ms": "60000"}


def test_import_results_name_equivalents_and_hide_secrets() -> None:
    text = "ssl.key.password=hush\nsome.password=hush\nlog.flush.interval.ms=5\noffsets.retention.minutes=9"
    rows = broker_settings(f"{text}\nnum.partitons=3\nlog.preallocate=true\ncompression.type=zstd", "f")
    assert [row.verdict for row in rows] == [
        NOT_NEEDED,
        NO_EQUIVALENT,
        NOT_NEEDED,
        NOT_NEEDED,
        NO_EQUIVALENT,
        NOT_NEEDED,
        IMPORTED,
    ]
    assert "hush" not in str(rows)
    texts = [row.text for row in rows]
    assert "durable before it is acknowledged" in texts[2]
    assert "--properties" in texts[3]
    assert "did you mean 'num.partitions'" in texts[4]
    wrong, taken = broker_settings("auto.create.topics.enable=1\nnum.partitions=3", "f")
    assert (wrong.verdict, taken.verdict) == (WRONG, IMPORTED)
    assert "auto.create.topics.enable must be true or false" in wrong.text
    for name in (
        "port",
        "replica.fetch.max.bytes",
        "controlled.shutdown.enable",
        "socket.timeout.ms",
        "quota.x",
        "zookeeper.session.timeout.ms",
        "log.dirs",
        "group.initial.rebalance.delay.ms",
    ):
        assert broker_settings(f"{name}=1", "f")[0].verdict == NOT_NEEDED, name


def test_describing_topics_reads_the_root_defaults_once(
    sparklog: Sparklog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        sparklog("topics", "create", name)
    looks, look = list[str](), DefaultsLog._has_first_entry

    def counted(self: DefaultsLog) -> bool:
        looks.append(self.id)
        return look(self)

    monkeypatch.setattr(DefaultsLog, "_has_first_entry", counted)
    assert "Topic: two" in sparklog("topics", "describe").out
    assert len(looks) == 1
