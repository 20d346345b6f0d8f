"""Clients of other projects. Each runs in its own process and gets requests as lines of JSON.

A request has `do`, `server`, and `options` with the client's own names:

* read: read `places` with one consumer, from the log start or from the offset `from`, to the end or to `count` records.
* join: read `topic` as a member of a group, up to `count` records, for `seconds`, or until the file `stop` exists;
  commit and leave.
* offsets: return the first and the last offset of each place, and the offsets at or after `times`.
* produce: write `records` to `topic` and return their offsets.
* transact: run `transactions` of one producer, with the offsets of `group` if it is set.
* admin: create, describe, change and delete `topic`, delete records of the topic `filled`, describe and delete `group`.
  The answer has the result of each step, or `{"error": ...}`.
* group (Java): describe `group`.

Records are lists: topic, partition, offset, timestamp (ms), timestamp type (0: CreateTime, 1: LogAppendTime, -1: none),
key and value (base64 or null), headers. Records to send consist of partition, timestamp, key, value, headers.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import pyspark

from tests.kafka_broker import console_jars
from tests.kafka_tools import KAFKA_VERSION, Missing, cache_folder, find_java, kafka_jars
from tests.serve.clients import ReadRecord
from tests.support.servers import programs

HERE = Path(__file__).parent
FRANZ_GO = "1.22.3"
"""The version in `go/go.mod`."""
ANSWER_SECONDS = 240
Place = tuple[str, int]
Record = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Partition, timestamp (ms), key, value, headers."""


class Failed(AssertionError):  # noqa: N818
    """A client returned an error, ended, or did not answer."""


class Peer:
    """A running client. `name` is its library and version."""

    def __init__(self, library: str, release: str, process: subprocess.Popen[str]) -> None:
        self.library = library
        self.name = f"{library}-{release}"
        self._process = process
        self._lock = Lock()

    def ask(self, do: str, server: object, **more: Any) -> Any:
        with self._lock:
            return self._ask(do, server, more)

    def _ask(self, do: str, server: object, more: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "server": str(server), **more}, default=str) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            self.kill()
            raise Failed(f"no answer within {ANSWER_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the client ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

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
    records: dict[Place, list[ReadRecord]] = {(topic, partition): [] for topic, partition in places}
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
def go_client(library: str, release: str, package: str, modules: str = "go.mod") -> Iterator[Peer]:
    """Build and run a Go program. Raises `Missing` if Go or its modules are not available."""
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no Go")
    program = cache_folder() / f"{library}-{release}"
    command = [go, "build", f"-modfile={modules}", "-o", str(program), f"./{package}"]
    built = subprocess.run(command, cwd=HERE / "go", capture_output=True, text=True, check=False)
    if built.returncode:
        raise Missing(f"the program for {library} cannot be built: {built.stderr[-300:]}")
    with running(library, release, [program]) as peer:
        yield peer


def franz_go() -> AbstractContextManager[Peer]:
    return go_client("franz-go", FRANZ_GO, "franz")
