"""Test doubles and pytest fixtures for testing programs that use sparklog without Spark.

* `sparklog.testing.plugin` contains the fixtures, such as `sparklog_root` (see docs/guides/pytest.md).
* `World` has a store in memory, a `ManualClock` and seeded ids. Each call of `root()` simulates another process.
* `RecordStream` generates records from a seed, and returns the expected results.
* `HookedStore` calls functions before and after requests. The functions may delay a request, raise an exception, or
  change the result.
* `CountingStore` counts requests, so that a test can check the request budget of an operation.
* `FaultyStore` injects faults, at points that a `Script` lists or at random with `Seeded`.
* `BucketStore` simulates the limits of object stores: late listings, times in whole seconds, and rejected creates.
* `SlowStore` delays requests by the latencies of S3.
* `WrapperStore` is the base class of these stores, and can be the base class of other test doubles.
* `sparklog.testing.store_tests.StoreTests` is the test suite for custom stores. It requires pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.common.lazy import lazy_names

if TYPE_CHECKING:
    from sparklog.storage.memory import MemoryStore
    from sparklog.testing.bucket_store import BUCKET_FAULTS, BucketStore
    from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Script, Seeded
    from sparklog.testing.records import RecordStream
    from sparklog.testing.slow_store import S3_EXPRESS, S3_STANDARD, Latencies, Latency, SlowStore
    from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, ManualClock, World
    from sparklog.testing.wrapper_stores import CountingStore, HookedStore, WrapperStore

__all__ = [
    "BUCKET_FAULTS", "DAY_MS", "HOUR_MS", "MINUTE_MS", "S3_EXPRESS", "S3_STANDARD", "START_MS", "BucketStore", "Call",
    "CountingStore", "Crash", "Fault", "FaultKind", "FaultyStore", "HookedStore", "Latencies", "Latency", "ManualClock",
    "MemoryStore", "RecordStream", "Script", "Seeded", "SlowStore", "World", "WrapperStore",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "sparklog.storage.memory": "MemoryStore",
            "sparklog.testing.bucket_store": "BUCKET_FAULTS BucketStore",
            "sparklog.testing.faulty_store": "Call Crash Fault FaultKind FaultyStore Script Seeded",
            "sparklog.testing.records": "RecordStream",
            "sparklog.testing.slow_store": "S3_EXPRESS S3_STANDARD Latencies Latency SlowStore",
            "sparklog.testing.world": "DAY_MS HOUR_MS MINUTE_MS START_MS ManualClock World",
            "sparklog.testing.wrapper_stores": "CountingStore HookedStore WrapperStore",
        },
    )


def __dir__() -> list[str]:
    return sorted(__all__)
