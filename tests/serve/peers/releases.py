"""The releases of clients in the matrix. Each is installed into a directory of its own in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.datasource.live_kafka import CONNECTOR_VERSION
from tests.kafka_tools import KAFKA_VERSION, Missing, cache_folder, find_java
from tests.serve.peers.applications import (
    CONNECT,
    FLINK,
    FLINK_CONNECTOR_RELEASE,
    KCAT,
    KCAT_RELEASE,
    QUICK_JVM,
    QUIET_JVM,
    SPARK,
    STREAMS,
    artifacts,
    connect_start,
    flink_start,
    kcat_start,
    spark_start,
    streams_start,
)
from tests.serve.peers.checks import CHECKS, Run
from tests.serve.peers.peer import FRANZ_GO, HERE, Peer, franz_go, go_client, running
from tests.support.servers import programs
from tests.support.servers.programs import AIOKAFKA, KAFKA_PYTHON, KAFKAJS, LIBRDKAFKA, Program


@dataclass(frozen=True, slots=True)
class Client:
    """A release of a client. `lacks` gives the reason for each check that does not apply to it."""

    name: str
    release: str
    start: Callable[[], AbstractContextManager[Any]]
    lacks: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Callable[[Run], Any]] = field(default_factory=lambda: CHECKS)

    @property
    def label(self) -> str:
        return f"{self.name} {self.release}"


@contextmanager
def java(release: str) -> Iterator[Peer]:
    more = ("com.fasterxml.jackson.core:jackson-databind:2.19.0", "org.slf4j:slf4j-simple:1.7.36")
    jars = artifacts(f"org.apache.kafka:kafka-clients:{release}", *more)
    command = [find_java(), *QUICK_JVM, QUIET_JVM, "-cp", f"{jars}{os.sep}*", str(HERE / "Clients.java")]
    with running("java", release, command) as peer:
        yield peer


@contextmanager
def python(program: Program, script: str, *arguments: str) -> Iterator[Peer]:
    """Run a script in the environment of a release."""
    library = program.name.rpartition("-")[0]
    with running(library, program.version, [interpreter(program), HERE / script, *arguments]) as peer:
        yield peer


@contextmanager
def kafkajs() -> Iterator[Peer]:
    modules = interpreter(KAFKAJS).parent.parent
    environment = {**os.environ, "NODE_PATH": str(modules)}
    with running("kafkajs", KAFKAJS.version, ["node", HERE / "kafkajs_client.js"], env=environment) as peer:
        yield peer


@contextmanager
def rskafka() -> Iterator[Peer]:
    """Build and run the Rust program. Raises `Missing` if Cargo or its crates are not available."""
    if shutil.which("cargo") is None:
        raise Missing("there is no Cargo")
    folder = cache_folder() / "rskafka"
    command = ["cargo", "build", "--quiet", "--manifest-path", str(HERE / "rskafka" / "Cargo.toml")]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder)}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Missing(f"the program for rskafka cannot be built: {built.stderr[-300:]}")
    with running("rskafka", RSKAFKA, [folder / "debug" / "peer"]) as peer:
        yield peer


def unavailable(reason: str) -> AbstractContextManager[Peer]:
    raise Missing(reason)


def interpreter(program: Program) -> Path:
    """Return the path of a program, which is fetched at its first use."""
    said = programs.fetch(program)
    try:
        return Path(programs.find(program))
    except programs.Missing:
        raise Missing(said) from None


OLD_RELEASE = "This release does not have the new group protocol."
OLD_PROTOCOL = {"New protocol": "This client does not have the new group protocol."}
RSKAFKA = "0.6.0"
"""The version in `rskafka/Cargo.toml`."""
KAFKA_PYTHON_LACKS = {
    ("kafka-python", "2.0.2"): dict.fromkeys(
        ("Idempotent", "Transactions", "Committed", "Static"),
        "This release does not have idempotent and transactional producers, isolation levels and static members.",
    ),
    ("kafka-python", "2.2.15"): {"Static": "This release does not have static members."},
}
KAFKA_GO = {
    "Idempotent": "kafka-go does not have an idempotent producer.",
    "Transactions": "kafka-go does not have a transactional producer.",
    "Static": "kafka-go does not have static members.",
}
CLIENTS = (
    *(
        Client("Java", release, partial(java, release), {"New protocol": OLD_RELEASE} if release < "4" else {})
        for release in ("2.8.2", "3.9.1", "4.1.0", "4.3.0")
    ),
    *(
        Client(
            "librdkafka",
            program.version,
            partial(python, program, "librdkafka_client.py"),
            {"New protocol": OLD_RELEASE} if program.version == "2.2.0" else {},
        )
        for program in LIBRDKAFKA
    ),
    *(
        Client(
            name,
            program.version,
            partial(python, program, "python_client.py", name),
            {**OLD_PROTOCOL, **KAFKA_PYTHON_LACKS.get((name, program.version), {})},
        )
        for name, releases in (("kafka-python", KAFKA_PYTHON), ("aiokafka", AIOKAFKA))
        for program in releases
    ),
    Client("franz-go", FRANZ_GO, franz_go),
    *(
        Client("Sarama", release, partial(go_client, "sarama", release, "sarama", modules), OLD_PROTOCOL)
        for release, modules in (("1.43.3", "sarama-1.43.3.mod"), ("1.61.1", "go.mod"))
    ),
    Client("kafka-go", "0.4.51", partial(go_client, "kafka-go", "0.4.51", "kafkago"), {**OLD_PROTOCOL, **KAFKA_GO}),
    Client("KafkaJS", KAFKAJS.version, kafkajs, {**OLD_PROTOCOL, "Static": "KafkaJS does not have static members."}),
    Client(
        "rskafka",
        RSKAFKA,
        rskafka,
        {
            **OLD_PROTOCOL,
            **dict.fromkeys(("acks 0, 1", "Idempotent", "Transactions"), "rskafka has neither acks nor idempotence."),
            **dict.fromkeys(("Group", "Killed", "Static"), "rskafka does not have groups."),
            "Committed": "rskafka does not have isolation levels.",
        },
    ),
    Client("kcat", KCAT_RELEASE, kcat_start, checks=KCAT),
    Client("Kafka Streams", KAFKA_VERSION, streams_start, checks=STREAMS),
    Client("Kafka Connect", KAFKA_VERSION, connect_start, checks=CONNECT),
    Client("Flink connector", FLINK_CONNECTOR_RELEASE, flink_start, checks=FLINK),
    Client("Spark connector", CONNECTOR_VERSION, spark_start, checks=SPARK),
    Client(
        "AKHQ, Kafbat UI",
        "",
        partial(
            unavailable,
            "The development machine has no container engine, and its lists of Maven (partial), npm and PyPI packages "
            "do not contain them.",
        ),
    ),
)
