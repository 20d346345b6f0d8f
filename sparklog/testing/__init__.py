"""Test doubles of stores, and the tests that every store must pass.

* `CountingStore` counts requests, so that a test can hold an operation to its request budget.
* `FaultyStore` fails on purpose, by a `Script` or by a `Seeded` plan.
* `BucketStore` is what all clients of an object store share: late listings, times in whole seconds, quick creates.
* `SlowStore` takes as long as S3 does.
* `WrapperStore` is the base of all, and of yours.
* `sparklog.testing.store_tests.StoreTests` is the suite for a store of your own; it needs pytest.
"""

from sparklog.storage.memory import MemoryStore
from sparklog.testing.bucket_store import BUCKET_FAULTS, BucketStore
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Script, Seeded
from sparklog.testing.slow_store import S3_EXPRESS, S3_STANDARD, Latencies, Latency, SlowStore
from sparklog.testing.wrapper_stores import CountingStore, WrapperStore

__all__ = [
    "BUCKET_FAULTS",
    "S3_EXPRESS",
    "S3_STANDARD",
    "BucketStore",
    "Call",
    "CountingStore",
    "Crash",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "Latencies",
    "Latency",
    "MemoryStore",
    "Script",
    "Seeded",
    "SlowStore",
    "WrapperStore",
]
