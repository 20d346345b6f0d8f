"""Kafka Streams with exactly-once processing over a server, while the application and the server are killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from tests.kafka_tools import KAFKA_VERSION, Missing, fetched_jars, find_java, kafka_jars

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("SPARKLOG_KILLS", "4"))
WORDS = ("log", "offset", "batch", "segment", "epoch")
LINES, WORDS_PER_LINE = 40, 5
SECONDS = 120.0
_IVY = f"""<ivy-module version="2.0">
  <info organisation="sparklog" module="kafka-streams"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka-streams" rev="{KAFKA_VERSION}" conf="default->master(*)"/>
  </dependencies>
</ivy-module>
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """The server and the application, each of which can be killed and started again."""

    def __init__(self, root: Path, folder: Path) -> None:
        port, jars = (
            free_port(),
            fetched_jars(f"kafka-streams-{KAFKA_VERSION}", _IVY, f"kafka-streams-{KAFKA_VERSION}.jar"),
        )
        classes = os.pathsep.join(f"{jar}{os.sep}*" for jar in (kafka_jars(), jars))
        quiet = (
            "-Xmx300m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        )
        program = str(Path(__file__).with_name("WordCount.java"))
        self._folder = folder
        self._commands: dict[str, Sequence[str]] = {
            "server": [
                sys.executable,
                "-m",
                "sparklog",
                "serve",
                str(root),
                "--writable",
                "--listen",
                f"127.0.0.1:{port}",
            ],
            "application": [find_java(), *quiet, "-cp", classes, program, f"127.0.0.1:{port}", str(folder / "state")],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._commands:
            self.start(name)

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(self._commands[name], stdout=output, stderr=output)

    def kill(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()

    def close(self) -> None:
        for name in self._running:
            self.kill(name)


def counts(root: sparklog.Root) -> dict[str, list[int]]:
    """Return the records of each word, as a `read_committed` reader sees them."""
    found: dict[str, list[int]] = {}
    table = root.topic("counts").scan(columns=["key", "value"]).to_table()
    for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found.setdefault(key.decode(), []).append(int(value))
    return found


def test_a_word_count_is_exact_although_the_application_and_the_server_are_killed(tmp_path: Path) -> None:
    source = random.Random(7)
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("text", partitions=2)
    root.create_topic("counts")
    expected: dict[str, int] = {}
    with ExitStack() as stack:
        try:
            processes = Processes(tmp_path / "root", tmp_path)
        except Missing as missing:
            pytest.skip(str(missing))
        stack.callback(processes.close)
        for number in range(KILLS + 1):
            for _ in range(LINES):
                words = source.choices(WORDS, k=WORDS_PER_LINE)
                root.topic("text").append(pa.table({"key": [f"{source.random()}"], "value": [" ".join(words)]}))
                for word in words:
                    expected[word] = expected.get(word, 0) + 1
            time.sleep(source.uniform(1, 6))
            if number < KILLS:
                name = ("application", "server")[number % 2]
                processes.kill(name)
                time.sleep(source.uniform(0, 1))
                processes.start(name)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and sum(map(len, counts(root).values())) < sum(expected.values()):
            time.sleep(0.5)
        time.sleep(2)
    assert counts(root) == {word: list(range(1, number + 1)) for word, number in expected.items()}
