"""sparklog: Kafka's partitioned log as Kafka-format files on a disk, with Spark as the engine.

    import sparklog
    topic = sparklog.open("/data/log").topic("orders")      # plain Python over Arrow, no Spark, no Java
    sparklog.register(spark)                                # spark.read.format("sparklog") and the other three

Names are loaded on first use, so that importing the package costs nothing in the many processes Spark starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.datasource import partitioned, register
    from sparklog.datasource.watch import watch
    from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
    from sparklog.groups.consumer import consumer
    from sparklog.log.topic.root import open_root as open  # noqa: A004  (the name users read: sparklog.open)
    from sparklog.transactions import transactional

__version__ = "0.1.0"
__all__ = [
    "BadRequest",
    "Conflict",
    "Corrupt",
    "Fenced",
    "NotFound",
    "SparklogError",
    "Unavailable",
    "__version__",
    "consumer",
    "open",
    "partitioned",
    "register",
    "transactional",
    "watch",
]

_HOME = {
    "open": ("sparklog.log.topic.root", "open_root"),
    "register": ("sparklog.datasource", "register"),
    "consumer": ("sparklog.groups.consumer", "consumer"),
    "partitioned": ("sparklog.datasource", "partitioned"),
    "transactional": ("sparklog.transactions", "transactional"),
    "watch": ("sparklog.datasource.watch", "watch"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sparklog' has no attribute {name!r}")
    module, attribute = _HOME.get(name, ("sparklog.errors", name))
    found = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
