"""The options of Kafka's command-line tools in `kafka_options.json`. Running this module generates the file from the
`--help` of the tools.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.kafka_broker import console_jars
from tests.kafka_tools import find_java, kafka_jars

FILE = Path(__file__).with_name("kafka_options.json")
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
}
TRANSACTIONS = ("list", "describe", "describe-producers", "abort", "find-hanging", "forceTerminateTransaction")
# jopt-simple starts a line with an option, and its value starts with `<` or `[`. argparse4j indents the option, and its
# value is in capitals.
OPTION = re.compile(r"^(?:  (?:-\w, )?)?(--[a-z][\w.-]*)(?: ([<\[A-Z]|host:)|  .*\n  (<))?", re.MULTILINE)


def help_of(tool: str, *words: str) -> str:
    """Return the output of a tool for `--help`."""
    classes = os.pathsep.join([f"{kafka_jars()}{os.sep}*", console_jars()])
    java = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes]
    done = subprocess.run([*java, TOOLS[tool], *words, "--help"], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def options_in(text: str) -> dict[str, str]:
    """Return each option of a help text, and whether it takes a value: `flag`, `value` or `optional`."""
    kinds = {"": "flag", "[": "optional"}
    return {name: kinds.get(mark + below, "value") for name, mark, below in sorted(OPTION.findall(text))}


def of_the_jars() -> dict[str, dict[str, str]]:
    """Return the options of all tools, and of the commands of kafka-transactions, which are not options."""
    options = {tool: options_in(help_of(tool)) for tool in TOOLS}
    for command in TRANSACTIONS:
        text = help_of("kafka-transactions", "--bootstrap-server", "localhost:1", command)
        options[f"kafka-transactions {command}"] = options_in(text)
    return options


def stored() -> Mapping[str, Mapping[str, str]]:
    return json.loads(FILE.read_text())


if __name__ == "__main__":
    FILE.write_text(json.dumps(of_the_jars(), indent=1) + "\n")
