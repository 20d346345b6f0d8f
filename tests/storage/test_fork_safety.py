"""What outlives a call in a process that forks: locks and caches."""

from __future__ import annotations

import os
import threading

from sparklog.storage.fork_safety import VALUE_BYTES, ForkLock, RecentlyUsed

ROOM = 3 * VALUE_BYTES + 10
"""For three values of three bytes."""


def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_holds() -> None:
    cache, lock = RecentlyUsed[str, bytes](len, ROOM), ForkLock()
    cache.put("a", b"1")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, cache._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        with lock:
            os._exit(0 if cache.get("a") == b"1" else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = RecentlyUsed[str, bytes](len, ROOM)
    for name in "abc":
        cache.put(name, b"123")
    assert cache.get("a") == b"123"
    cache.put("d", b"123")
    assert [name for name in "abcd" if cache.get(name) is not None] == ["a", "c", "d"]
    cache.put("a", b"of another thread, the same file")
    assert cache.get("a") == b"123"
    cache.put("e", bytes(ROOM))
    assert [name for name in "abcde" if cache.get(name) is not None] == []
    cache.put("f", b"")
    assert cache.get("f") == b""
