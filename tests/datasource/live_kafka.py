"""Spark's Kafka connector for tests with a real broker (`tests.kafka_broker`).

Jars are downloaded once per host, like those of `tests.kafka_tools`. `Missing` reports why they are not available.
"""

from __future__ import annotations

from pathlib import Path

from tests.kafka_tools import fetched_jars

CONNECTOR_VERSION = "4.2.0"
"""The minor version of Spark. Patch releases are compatible with each other."""
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_TOKENS = "spark-token-provider-kafka-0-10_2.13"
# Omit the jars that Spark includes. The token provider, which only Kerberos needs, is a release that every mirror has.
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


def connector_jars() -> list[Path]:
    """Return Spark's Kafka connector and its dependencies that Spark does not include."""
    folder = fetched_jars(f"spark-kafka-{CONNECTOR_VERSION}", _IVY, f"{_CONNECTOR}-{CONNECTOR_VERSION}.jar")
    return sorted(folder.glob("*.jar"))
