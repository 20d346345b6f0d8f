"""Functions to call at interpreter exit while stores can still be written.

Stores of buckets write with thread pools, which Python shuts down before it calls the functions of `atexit`.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable


def call_before_pools_stop(function: Callable[[], None]) -> None:
    """Call a function at interpreter exit, before Python shuts down thread pools.

    CPython 3.9 and later provide the private `threading._register_atexit` for this. Other Pythons use `atexit`, so that
    a last write to a bucket fails there.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)
