"""The table of topic configs compared with Kafka 4.1's, which `LogConfig` prints as the page of Kafka's website."""

from __future__ import annotations

import html
import os
import re
import subprocess

import pytest

from sparklog.common.settings import Setting
from sparklog.log.state.broker_names import BROKER_NAMES
from sparklog.log.state.configs import CONFIGS
from sparklog.maintenance.properties import PROPERTIES
from tests.kafka_tools import Missing, find_java, kafka_jars

pytestmark = pytest.mark.java

LOG_CONFIG = "org.apache.kafka.storage.internals.log.LogConfig"
ROW = re.compile(r"<tr><th>(.*?):</th><td>(.*?)</td></tr>", re.DOTALL)


@pytest.fixture(scope="module")
def kafka() -> dict[str, dict[str, str]]:
    """Return `Type`, `Default`, `Valid Values` and `Server Default Property` of each config."""
    try:
        command = [find_java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}{os.sep}*", LOG_CONFIG]
    except Missing as reason:
        pytest.skip(str(reason))
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = {}
    for section in page.split("<h4>")[1:]:
        name = re.search(r'id="topicconfigs_([^"]+)"', section)
        assert name is not None
        found[name[1]] = {heading: html.unescape(value) for heading, value in ROW.findall(section)}
    return found


def default_of(row: dict[str, str]) -> str:
    """Return a default without the text in parentheses, as in `604800000 (7 days)`."""
    return row["Default"].split(" (")[0].strip('"')


def least_of(row: dict[str, str]) -> str | None:
    """Return the lower bound in `[0,...]`, or None if there is none."""
    match = re.match(r"\[(-?\d+),\.\.\.", row["Valid Values"])
    return match[1] if match else None


def least_here(config: Setting) -> str | None:
    match = re.search(r"(?:of at least|from) (-?\d+)|^(\d) to 9", config.type.valid)
    return next((each for each in match.groups() if each is not None), None) if match else None


def test_exactly_kafkas_configs_are_known(kafka: dict[str, dict[str, str]]) -> None:
    gone = {name for name, config in CONFIGS.items() if config.kafka.startswith("Not in Kafka 4")}
    assert set(CONFIGS) - gone == {*kafka, "inline.records.bytes", "carried.commits"}


def test_types_defaults_and_ranges_are_kafkas_except_documented_ones(kafka: dict[str, dict[str, str]]) -> None:
    differing = []
    for name, row in kafka.items():
        config = CONFIGS[name]
        assert config.type.name == row["Type"], name
        same_default = config.default_text == default_of(row)
        same_least = least_here(config) == least_of(row)
        if not (same_default and same_least):
            differing.append(name)
            there = default_of(row) if not same_default else least_of(row)
            assert str(there) in config.kafka, f"{name}: Kafka has {there}"
    assert sorted(differing) == [
        "compression.zstd.level",
        "file.delete.delay.ms",
        "message.timestamp.after.max.ms",
        "segment.bytes",
    ]
    assert [name for name, config in CONFIGS.items() if config.kafka and name not in differing] == [
        "inline.records.bytes",
        "carried.commits",
        "message.timestamp.difference.max.ms",
        "message.format.version",
        "message.downconversion.enable",
    ]


def test_each_config_has_its_broker_name(kafka: dict[str, dict[str, str]]) -> None:
    for name, row in kafka.items():
        broker = row["Server Default Property"]
        assert [item.name for item in BROKER_NAMES[name][:1]] == ([] if broker == "null" else [broker]), name
    assert [item.name for item in BROKER_NAMES["inline.records.bytes"]] == ["inline.records.bytes"]


def test_broker_names_match_the_maintenance_properties(kafka: dict[str, dict[str, str]]) -> None:
    brokers = {row["Server Default Property"]: name for name, row in kafka.items()}
    for each in PROPERTIES.values():
        if each.field in CONFIGS and not each.name.endswith((".hours", ".minutes")):
            assert brokers[each.name] == each.field
