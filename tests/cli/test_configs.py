"""`sparklog configs`: describe, alter and docs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.log.state.configs import CONFIGS
from sparklog.maintenance.properties import PROPERTIES
from tests.cli.conftest import REPOSITORY, Sparklog


@pytest.fixture
def orders(root: Path) -> library.log.topic.Topic:
    return library.open(root, create=True).create_topic("orders", configs={"retention.ms": 1000})


@pytest.mark.usefixtures("orders")
def test_describe_shows_set_configs_or_all_configs(sparklog: Sparklog) -> None:
    assert sparklog("configs", "describe", "orders").lines == [
        "Dynamic configs for topic orders are:",
        "  retention.ms=1000 (1 s)  (DYNAMIC_TOPIC_CONFIG, default 604800000 (7 days))",
    ]
    everything = sparklog("configs", "describe", "orders", "--all").lines
    assert len(everything) == 1 + len(CONFIGS)
    assert "  segment.ms=604800000 (7 days)" in everything
    rows = json.loads(sparklog("configs", "describe", "--all", "--json").out)
    sources = {row["name"]: row["source"] for row in rows if row["source"] != "DEFAULT_CONFIG"}
    assert sources == {"retention.ms": "DYNAMIC_TOPIC_CONFIG"}


def test_alter_in_kafkas_syntax(sparklog: Sparklog, orders: library.log.topic.Topic) -> None:
    add = "cleanup.policy=[compact, delete],segment.ms=7"
    said = sparklog("configs", "alter", "orders", "--add-config", add, "--delete-config", "retention.ms").lines
    assert said == [
        "  cleanup.policy: delete -> compact,delete",
        "  retention.ms: 1000 (1 s) -> 604800000 (7 days)",
        "  segment.ms: 604800000 (7 days) -> 7 (7 ms)",
        "Completed updating config for topic orders.",
    ]
    assert orders.log.state().configs.explicit == {"cleanup.policy": "compact,delete", "segment.ms": "7"}
    again = sparklog("configs", "alter", "orders", "--add-config", "segment.ms=7").lines
    assert again == ["Topic orders already has this config."]


def test_dry_run_validates_and_changes_nothing(sparklog: Sparklog, orders: library.log.topic.Topic) -> None:
    orders.append(pa.table({"value": [b"no key"]}))
    version = orders.log.state().version
    said = sparklog("configs", "alter", "orders", "--add-config", "segment.ms=7", "--dry-run", "--json").out
    assert json.loads(said) == {
        "topic": "orders",
        "dryRun": True,
        "changes": [{"name": "segment.ms", "before": "604800000", "after": "7"}],
    }
    compact = ("configs", "alter", "orders", "--add-config", "cleanup.policy=compact")
    assert "records without keys" in sparklog(*compact, "--dry-run", code=1).err
    assert "records without keys" in sparklog(*compact, code=1).err
    assert orders.log.state().version == version
    sparklog(*compact, "--force")
    assert orders.log.state().configs.is_compacted


def test_alter_from_a_file(sparklog: Sparklog, orders: library.log.topic.Topic, tmp_path: Path) -> None:
    file = tmp_path / "configs.properties"
    file.write_text("# ours\nsegment.ms = 7\n")
    sparklog("configs", "alter", "orders", "--add-config-file", file)
    assert orders.log.state().configs.explicit == {"retention.ms": "1000", "segment.ms": "7"}
    assert "cannot be read" in sparklog("configs", "alter", "orders", "--add-config-file", tmp_path / "no", code=1).err


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "nothing to alter"),
        (("--add-config", "retention.ms"), 2, "expected NAME=VALUE"),
        (("--add-config", "retention.ms=5", "--delete-config", "retention.ms"), 2, "both set and deleted"),
        (("--add-config", "retention.msec=5"), 1, "did you mean 'retention.ms'"),
        (("--delete-config", "retention.msec"), 1, "did you mean 'retention.ms'"),
        (("--add-config", "segment.ms=7,retention.ms=-2"), 1, "retention.ms must be an integer of at least -1"),
        (("--add-config", "file.delete.delay.ms=5"), 1, "one hour"),
    ],
)
def test_invalid_input_changes_nothing(
    sparklog: Sparklog, root: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = sparklog("configs", "alter", "orders", *arguments, code=code)
    assert says in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert library.open(root).topic("orders").log.state().version == 0


def test_alter_fails_if_the_config_changed_concurrently(orders: library.log.topic.Topic) -> None:
    seen = orders.log.state()
    orders.alter(configs={"retention.ms": 5})
    with pytest.raises(library.Conflict, match=r"another process changed config retention\.ms"):
        orders.alter(configs={"retention.ms": 6}, since=seen)
    orders.alter(configs={"segment.ms": 6}, since=seen)
    assert orders.log.state().configs.explicit == {"retention.ms": "5", "segment.ms": "6"}


def test_a_kafka_directory_has_no_configs(sparklog: Sparklog) -> None:
    place = REPOSITORY / "examples" / "data" / "kafka-log-dir"
    assert "does not contain configs" in sparklog("configs", "describe", "--root", place, code=1).err


def test_docs_explain_each_config_and_suggest_similar_names(sparklog: Sparklog) -> None:
    shown = sparklog("configs", "docs", "segment.bytes", "log.retention.hours").out
    assert shown.startswith("segment.bytes  topic, int (bytes)\n  Size at which a segment is full")
    assert "  Kafka 4.1: The minimum is 1048576" in shown
    assert "log.retention.hours  maintenance, int (hours)\n" in shown
    every = json.loads(sparklog("configs", "docs", "--json").out)
    assert {each["name"] for each in every} == {*CONFIGS, *PROPERTIES}
    assert all(each["doc"].endswith(".") and each["valid"] and each["kind"] for each in every)
    assert "did you mean 'retention.ms'" in sparklog("configs", "docs", "retention.m", code=1).err


def test_the_page_of_configs_is_generated(sparklog: Sparklog) -> None:
    made = sparklog("configs", "docs", "--markdown").out
    assert (REPOSITORY / "docs" / "reference" / "configs.md").read_text() == made, (
        "sparklog configs docs --markdown > docs/reference/configs.md"
    )
