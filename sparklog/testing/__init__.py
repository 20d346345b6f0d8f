"""Tests of what is built on sparklog, without Spark: fixtures for pytest, and doubles of clocks, stores and streams.

* `sparklog.testing.plugin` has the fixtures, such as `sparklog_root`: docs/guides/pytest.md.
* `World` is a store in memory with a `ManualClock` and seeded ids; each `root()` of it is one more process.
* `RecordStream` makes records from a seed, and says what to expect of them.
* `HookedStore` calls your code before and after requests, which may delay them, raise, or change their results.
* `CountingStore` counts requests, so that a test can hold an operation to its request budget.
* `FaultyStore` fails on purpose, by a `Script` or by a `Seeded` plan.
* `BucketStore` is what all clients of an object store share: late listings, times in whole seconds, quick creates.
* `SlowStore` takes as long as S3 does.
* `WrapperStore` is the base of all, and of yours.
* `sparklog.testing.store_tests.StoreTests` is the suite for a store of your own; it needs pytest.
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
