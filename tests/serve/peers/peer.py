"""Clients of other projects. Each runs in its own process and gets requests as lines of JSON.

A request has `do` (read, join, offsets, produce), `server`, and `options` with the client's own names. Records are
lists: topic, partition, offset, timestamp (ms), timestamp type (0: CreateTime, 1: LogAppendTime, -1: none), key and
value (base64 or null), headers. Records to send consist of partition, timestamp, key, value, headers.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark

from tests.kafka_broker import console_jars
from tests.kafka_tools import KAFKA_VERSION, Missing, cache_folder, find_java, kafka_jars
from tests.serve.clients import ReadRecord
from tests.support.servers import programs

HERE = Path(__file__).parent
FRANZ_GO = "1.22.3"
"""The version in `franz/go.mod`."""
Place = tuple[str, int]
Record = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Partition, timestamp (ms), key, value, headers."""


class Peer:
    """A running client. `name` is its library and version."""

    def __init__(self, library: str, release: str, process: subprocess.Popen[str]) -> None:
        self.library = library
        self.name = f"{library}-{release}"
        self._process = process

    def ask(self, do: str, server: object, **more: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "server": str(server), **more}, default=str) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.name} ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "error" not in answer, f"{self.name}: {answer['error']}"
        return answer

    def read(
        self, server: object, places: Sequence[Place], isolation: str, count: int = 0, **options: Any
    ) -> dict[Place, list[ReadRecord]]:
        """Return the records that one consumer reads from each of these partitions.

        `count` is the number of records, for a client that cannot detect the end of a partition.
        """
        options = {"isolation.level": isolation, **options}
        return by_place(self.ask("read", server, places=places, count=count, options=options)["records"], places)

    def join(
        self, server: object, topic: str, group: str, count: int, seconds: int = 30, **options: Any
    ) -> dict[Place, list[ReadRecord]]:
        """Return the records that a group member reads and commits, up to a number of records or seconds."""
        options = {"group.id": group, **options}
        answer = self.ask("join", server, topic=topic, count=count, seconds=seconds, options=options)
        return by_place(answer["records"])

    def produce(self, server: object, topic: str, records: Sequence[Record], **options: Any) -> list[int]:
        """Return the offsets that the server assigned."""
        rows = [
            [partition, time_ms, text(key), text(value), [[name, text(data)] for name, data in headers]]
            for partition, time_ms, key, value, headers in records
        ]
        offsets: list[int] = self.ask("produce", server, topic=topic, records=rows, options=options)["offsets"]
        return offsets

    def offsets(self, server: object, places: Sequence[Place], times: Sequence[int], **options: Any) -> list[list[int]]:
        """Return the first and the last offset of each partition, and the offsets at or after timestamps (-1: none)."""
        rows: list[list[int]] = self.ask("offsets", server, places=places, times=times, options=options)["offsets"]
        return rows

    def run(self, name: str, arguments: Sequence[str], stdin: str) -> dict[str, Any]:
        """Run a Java command line tool. Return its `status` and its output `out` and `err`."""
        answer: dict[str, Any] = self.ask("tool", "", **{"class": name}, arguments=arguments, stdin=stdin)
        return answer

    def tool(self, name: str, *arguments: str) -> str:
        """Return the output of a Java command line tool, which must exit with 0."""
        answer = self.run(name, arguments, "")
        assert answer["status"] == 0, answer
        printed: str = answer["out"]
        return printed


def by_place(rows: Sequence[Sequence[Any]], places: Sequence[Place] = ()) -> dict[Place, list[ReadRecord]]:
    records: dict[Place, list[ReadRecord]] = {tuple(place): [] for place in places}
    for topic, partition, offset, time_ms, kind, key, value, headers in rows:
        pairs = tuple((name, data(header)) for name, header in headers)
        record = ReadRecord(offset, time_ms, kind, data(key), data(value), pairs)
        records.setdefault((topic, partition), []).append(record)
    return records


def text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def data(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


@contextmanager
def running(library: str, release: str, command: Sequence[str | Path], **more: Any) -> Iterator[Peer]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", **more
    )
    try:
        yield Peer(library, release, process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def java_clients() -> Iterator[Peer]:
    """Run the Java clients and tools. Raises `Missing` if they cannot be run."""
    scala = (Path(pyspark.__file__).parent / "jars").glob("scala-reflect-*.jar")
    classes = [f"{kafka_jars()}{os.sep}*", console_jars(), *map(str, scala)]
    options = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = [find_java(), *options, quiet, "-cp", os.pathsep.join(classes), str(HERE / "Clients.java")]
    with running("java", KAFKA_VERSION, command) as peer:
        yield peer


@contextmanager
def python_client(name: str) -> Iterator[Peer]:
    """Run kafka-python or aiokafka from this environment."""
    with running(name, version(name), [sys.executable, HERE / "python_client.py", name]) as peer:
        yield peer


@contextmanager
def librdkafka(program: programs.Program) -> Iterator[Peer]:
    """Run a release of librdkafka. Raises `Missing` with installation instructions."""
    try:
        python = programs.find(program)
    except programs.Missing as missing:
        raise Missing(str(missing)) from None
    with running("librdkafka", program.version, [python, HERE / "librdkafka_client.py"]) as peer:
        yield peer


@contextmanager
def franz_go() -> Iterator[Peer]:
    """Build and run the Go program. Raises `Missing` if Go or its modules are not available."""
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no Go")
    program = cache_folder() / "franz-go"
    built = subprocess.run(
        [go, "build", "-o", program, "."], cwd=HERE / "franz", capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise Missing(f"franz-go's program cannot be built: {built.stderr[-300:]}")
    with running("franz-go", FRANZ_GO, [program]) as peer:
        yield peer
