"""The thread that sends the heartbeats of a group member while the program processes records.

The thread has only a weak reference to its member. If the program drops the member, the thread ends, and the session of
the member times out. At interpreter exit, threads are stopped before the stores are closed. A forked child process has
no heartbeat thread.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Protocol

from sparklog.errors import Fenced, SparklogError
from sparklog.log.journal.clocks import SYSTEM
from sparklog.storage.exit_hooks import call_before_pools_stop
from sparklog.storage.fork_safety import ForkLock

_LOG = logging.getLogger("sparklog.groups")
EXIT_TIMEOUT_S = 5.0
"""The maximum time to wait for all in-flight heartbeats at interpreter exit."""


class HasHeartbeat(Protocol):
    """A member that sends a heartbeat if one is due."""

    def heartbeat(self) -> None: ...


class HeartbeatThread:
    """Calls `heartbeat` of a member every `every_s` seconds until `stop` is called."""

    def __init__(self, member: HasHeartbeat, name: str, every_s: float) -> None:
        self._member = weakref.ref(member)
        self._every_s = every_s
        self._process = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        finalizer = weakref.finalize(member, self.stop)
        # `_stop_all` stops the threads of the existing members at interpreter exit.
        finalizer.atexit = False

    def start(self) -> None:
        with _LOCK:
            _STARTED.add(self)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop sending heartbeats. A heartbeat may still be in flight."""
        # In a forked child process, this call could hang, because the thread may have held the event's lock.
        if self._process == os.getpid():
            self._stopped.set()

    def join(self, timeout_s: float) -> None:
        """Wait for an in-flight heartbeat."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            member = self._member()
            if member is None:
                return
            try:
                member.heartbeat()
            except Fenced as error:
                # The next poll rejoins the group.
                _LOG.info("heartbeats were stopped: %s", error)
                return
            except SparklogError as error:
                _LOG.warning("a heartbeat failed and will be retried in %s s: %s", self._every_s, error)
            except Exception:  # noqa: BLE001  (the next poll raises the error if it persists)
                _LOG.exception("heartbeats were stopped by an unexpected error")
                return
            # Do not hold a reference to the member while waiting.
            del member


_STARTED: weakref.WeakSet[HeartbeatThread] = weakref.WeakSet()
_LOCK = ForkLock()
"""Held while `_STARTED` is changed or copied."""


def _stop_all() -> None:
    with _LOCK:
        started = list(_STARTED)
    # A forked child process has the thread objects of its parent, but these threads do not run in the child.
    threads = [thread for thread in started if thread.is_alive()]
    for thread in threads:
        thread.stop()
    end_ms = SYSTEM.boot_ms() + round(1000 * EXIT_TIMEOUT_S)
    for thread in threads:
        thread.join(max(0, end_ms - SYSTEM.boot_ms()) / 1000)


call_before_pools_stop(_stop_all)
