"""A thread that keeps a member of a group alive while its program works on records.

It holds no reference to its member: one that is forgotten ends its thread, and its session times out. At the end of the
interpreter threads are ended before what they write with. A forked child has none.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import Protocol

from sparklog.errors import Fenced, SparklogError

_LOG = logging.getLogger("sparklog.groups")
EXIT_S = 5.0
"""How long the end of the interpreter waits for a heartbeat that is under way."""


class Beating(Protocol):
    """A member: `beat` sends a heartbeat if one is due."""

    def beat(self) -> None: ...


class HeartbeatThread(threading.Thread):
    """Calls `beat` of a member each `every_s` seconds, until `stop`; see the module."""

    def __init__(self, member: Beating, name: str, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._member = weakref.ref(member)
        self._every_s = every_s
        self._stopped = threading.Event()
        weakref.finalize(member, self._stopped.set).atexit = False
        _OPEN.add(self)

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(self._every_s):
            member = self._member()
            if member is None:
                return
            try:
                member.beat()
            except Fenced as error:
                # The next poll joins again.
                _LOG.info("no heartbeats any more: %s", error)
                return
            except SparklogError as error:
                _LOG.warning("a heartbeat failed, the next one is tried in %s s: %s", self._every_s, error)
            del member


_OPEN: weakref.WeakSet[HeartbeatThread] = weakref.WeakSet()


def _end_all() -> None:
    threads = [thread for thread in _OPEN if thread.is_alive()]
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(EXIT_S)


# Earlier than the end of thread pools, where Python has that: buckets are written with one.
getattr(threading, "_register_atexit", atexit.register)(_end_all)
