"""A real Kafka broker for tests, one process in KRaft mode on ports of its own, and Spark's connector for it.

Jars are fetched once per machine, as those of `tests.kafka_tools` are; `Missing` says why they cannot be.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.kafka_tools import fetched_jars, find_java, kafka_jars

START_SECONDS = 120
CONNECTOR_VERSION = "4.2.0"
"""Of Spark's minor version; patch releases fit one another."""
CLUSTER_ID = "c3BhcmtsbxcnLXRlc3RzMQ"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_TOKENS = "spark-token-provider-kafka-0-10_2.13"
# What Spark brings itself is left out; the token provider, which only Kerberos needs, is one that any mirror has.
_IVY = f"""<ivy-module version="2.0">
  <info organisation="sparklog" module="spark-kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="{_CONNECTOR}" rev="{CONNECTOR_VERSION}"
      conf="default->runtime(*),master(*)"/>
    <exclude org="org.scala-lang"/>
    <exclude org="org.scala-lang.modules"/>
    <exclude org="org.apache.hadoop"/>
    <exclude org="org.slf4j"/>
    <exclude org="org.apache.spark" module="spark-tags_2.13"/>
    <exclude org="org.lz4"/>
    <exclude org="at.yawk.lz4"/>
    <exclude org="org.xerial.snappy"/>
    <exclude org="com.github.luben"/>
    <exclude org="com.google.code.findbugs"/>
    <override org="org.apache.spark" module="{_TOKENS}" rev="4.0.0"/>
  </dependencies>
</ivy-module>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


def connector_jars() -> list[Path]:
    """Spark's Kafka connector and what it needs beside Spark."""
    folder = fetched_jars(f"spark-kafka-{CONNECTOR_VERSION}", _IVY, f"{_CONNECTOR}-{CONNECTOR_VERSION}.jar")
    return sorted(folder.glob("*.jar"))


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker with its files below `folder`: its `host:port`. It is killed at the end."""
    folder.mkdir(parents=True)
    port, controller = _free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
    spark = Path(pyspark.__file__).parent / "jars"
    scala = [str(jar) for name in ("library", "reflect") for jar in spark.glob(f"scala-{name}-*.jar")]
    classes = os.pathsep.join([f"{kafka_jars()}{os.sep}*", *scala])
    java = [find_java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes]
    log = folder / "log"
    with log.open("ab") as to:
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(formatting, stdout=to, stderr=to, check=True, timeout=START_SECONDS)
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=to, stderr=to)
    try:
        end = time.monotonic() + START_SECONDS
        while b"Kafka Server started" not in log.read_bytes():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, "the broker did not start in time"
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()
