"""sparklog: Kafka's partitioned log as Kafka-format files, with Spark as the engine and without brokers.

    import sparklog
    topic = sparklog.open("/data/log").topic("orders")      # plain Python with Arrow, without Spark and Java
    spark = sparklog.configure(SparkSession.builder).getOrCreate()      # for spark.read.format("sparklog")

The names in `__all__` are the public API (see docs/reference/python.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.common.lazy import lazy_names
from sparklog.version import __version__

if TYPE_CHECKING:
    from sparklog.api import (
        backup,
        clone,
        compact,
        export_kafka,
        import_kafka,
        restore,
        retain,
        verify,
    )
    from sparklog.clients.consumer.consumer import Consumer, consumer
    from sparklog.clients.consumer.partition_reader import ConsumerRecord
    from sparklog.clients.consumer.rebalances import RebalanceListener
    from sparklog.clients.producer.futures import RecordFuture, RecordFutures, RecordMetadata
    from sparklog.clients.producer.producer import Producer, producer
    from sparklog.datasource.dataframes import read, read_stream
    from sparklog.datasource.partitioned import partitioned
    from sparklog.datasource.restarts import run_query
    from sparklog.datasource.session import configure, register
    from sparklog.datasource.watch import watch
    from sparklog.engines.datasets import datasets, duckdb, polars, table
    from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable, Wakeup
    from sparklog.groups.lag import Groups
    from sparklog.log.read.followed_table import FollowedTable
    from sparklog.log.read.topic_reader import TopicReader
    from sparklog.log.read.topic_scan import Scan
    from sparklog.log.read.topic_table import TopicTable
    from sparklog.log.state.writer_runs import WriterKey
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.root import open_root as open  # noqa: A004 - users call sparklog.open
    from sparklog.log.topic.topic import Topic
    from sparklog.log.write.append_target import WriteOptions
    from sparklog.tables.functions import to_delta, to_iceberg
    from sparklog.tools.repair.run import repair
    from sparklog.tools.repartition import repartition
    from sparklog.transactions.producer import Transaction, TransactionalProducer, transactional
    from sparklog.view import View, open_view

__all__ = [
    "BadRequest", "Conflict", "Consumer", "ConsumerRecord", "Corrupt", "Fenced", "FollowedTable", "Groups",
    "NotFound", "Producer", "RebalanceListener", "RecordFuture", "RecordFutures", "RecordMetadata", "Root", "Scan",
    "SparklogError", "Topic", "TopicReader", "TopicTable", "Transaction", "TransactionalProducer", "Unavailable",
    "View", "Wakeup", "WriteOptions", "WriterKey", "__version__", "backup", "clone", "compact", "configure",
    "consumer", "datasets", "duckdb", "export_kafka", "import_kafka", "open", "open_view", "partitioned", "polars",
    "producer", "read", "read_stream", "register", "repair", "repartition", "restore", "retain", "run_query",
    "table", "to_delta", "to_iceberg", "transactional", "verify", "watch",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "sparklog.api": "backup clone compact export_kafka import_kafka restore retain verify",
            "sparklog.datasource.session": "configure register",
            "sparklog.datasource.dataframes": "read read_stream",
            "sparklog.datasource.partitioned": "partitioned",
            "sparklog.datasource.restarts": "run_query",
            "sparklog.datasource.watch": "watch",
            "sparklog.errors": "BadRequest Conflict Corrupt Fenced NotFound SparklogError Unavailable Wakeup",
            "sparklog.clients.consumer.consumer": "Consumer consumer",
            "sparklog.clients.consumer.partition_reader": "ConsumerRecord",
            "sparklog.groups.lag": "Groups",
            "sparklog.clients.consumer.rebalances": "RebalanceListener",
            "sparklog.view": "View open_view",
            "sparklog.log.read.followed_table": "FollowedTable",
            "sparklog.log.read.topic_reader": "TopicReader",
            "sparklog.log.read.topic_scan": "Scan",
            "sparklog.log.read.topic_table": "TopicTable",
            "sparklog.log.state.writer_runs": "WriterKey",
            "sparklog.log.topic.root": "Root open_root=open",
            "sparklog.log.topic.topic": "Topic",
            "sparklog.log.write.append_target": "WriteOptions",
            "sparklog.clients.producer.futures": "RecordFuture RecordFutures RecordMetadata",
            "sparklog.clients.producer.producer": "Producer producer",
            "sparklog.engines.datasets": "datasets duckdb polars table",
            "sparklog.tables.functions": "to_delta to_iceberg",
            "sparklog.tools.repair.run": "repair",
            "sparklog.tools.repartition": "repartition",
            "sparklog.transactions.producer": "Transaction TransactionalProducer transactional",
        },
    )


def __dir__() -> list[str]:
    return sorted(__all__)
