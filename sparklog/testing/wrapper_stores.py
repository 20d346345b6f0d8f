"""Stores that wrap another store: the base class of test doubles, a store with hooks, and a counting store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sparklog.limits import Limits
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import Store, key_kind
from sparklog.storage.wrapper_store import WrapperStore, WrapperWriter

__all__ = ["CountingStore", "HookedStore", "WrapperStore", "WrapperWriter"]


class HookedStore(WrapperStore):
    """A store that calls hooks before and after each request to `inner`.

    A request has a verb, which is the name of a method of `Store`, and a key or prefix. A data object is one `writer`
    request, which is made when the writer is created. If several threads use the store, they also call the hooks in
    parallel.

    Args:
        inner: The store to which the requests are forwarded.
        before: A function that is called with the verb and the key before each request. If the function raises an
            exception, the request is not forwarded.
        after: A function that is called with the verb, the key and the result after each request, and returns the
            result for the caller. If the function raises an exception, the request has taken effect, but its response
            is lost.
        limits: The limits of this store. If None, the limits of `inner` are used.
        parallel_reads: The recommended number of parallel reads. If None, the value of `inner` is used.
        writable: False if the store rejects writes. If None, the value of `inner` is used.

    Example:
        world = testing.World()
        requests = []
        store = testing.HookedStore(world.store, before=lambda verb, key: requests.append(verb))
        root = world.root(store)
        store.before_next("create:commit", lambda: world.root().create_topic("other"))
        root.create_topic("t")
        assert "create" in requests
        assert root.topics() == ["other", "t"]
    """

    def __init__(
        self,
        inner: Store,
        before: Callable[[str, str], object] | None = None,
        after: Callable[[str, str, Any], Any] | None = None,
        *,
        limits: Limits | None = None,
        parallel_reads: int | None = None,
        writable: bool | None = None,
    ) -> None:
        super().__init__(inner)
        self.before = before
        self.after = after
        self._limits = limits
        self._parallel_reads = parallel_reads
        self._writable = writable
        self._once: dict[tuple[str, bool], Callable[[], object]] = {}

    @property
    def limits(self) -> Limits:
        return self.inner.limits if self._limits is None else self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits

    @property
    def parallel_reads(self) -> int:
        return self.inner.parallel_reads if self._parallel_reads is None else self._parallel_reads

    @property
    def writable(self) -> bool:
        return self.inner.writable if self._writable is None else self._writable

    def before_next(self, label: str, action: Callable[[], object]) -> None:
        """Call `action` once, before the next request with this label.

        Args:
            label: The verb and kind of key, as in `Script.fail`: `create:commit`, `get:append`, `list:other`.
            action: The function to call. It may raise an exception, and may send requests to this store.
        """
        self._once[label, False] = action

    def after_next(self, label: str, action: Callable[[], object]) -> None:
        """Call `action` once, after the next request with this label has taken effect and before its response arrives.

        Args:
            label: The verb and kind of key, as in `before_next`.
            action: The function to call. If it raises an exception, the response is lost.
        """
        self._once[label, True] = action

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        label = f"{verb}:{key_kind(key)}"
        if self.before is not None:
            self.before(verb, key)
        if action := self._once.pop((label, False), None):
            action()
        result = send()
        if action := self._once.pop((label, True), None):
            action()
        return result if self.after is None else self.after(verb, key, result)


class CountingStore(WrapperStore):
    """A store that counts every call by verb, which is the name of a method of `Store`, and by kind of key.

    A data object is counted as one `writer` call, which is made when the writer is created. A pickled copy starts with
    the current counts, and then counts its own calls. `sparklog.storage.store.key_kind` defines the kinds of keys.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = ForkLock()
        self.counts: Counter[str] = Counter()
        self.by_kind: Counter[tuple[str, str]] = Counter()
        """The number of calls by verb and kind of key, for example `("create", "commit")`."""
        self.keys: list[tuple[str, str]] = []
        """The verb and the key or prefix of every call, in order."""
        self.bytes_read = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=ForkLock())

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self.counts.clear()
            self.by_kind.clear()
            self.keys.clear()
            self.bytes_read = 0

    def expect(self, **counts: int) -> None:
        """Assert the exact number of calls since `reset`.

        Args:
            counts: The calls by verb (`get=2`) or by verb and kind of key (`create_commit=1`). The counts of all kinds
            of a verb add up to the total of the verb. Unlisted verbs must not have been called.

        Raises:
            AssertionError: If a count differs. The message lists the calls.
        """
        self._check(counts, "expected", lambda made, count: made == count)

    def expect_at_most(self, **limits: int) -> None:
        """Assert upper bounds for the number of calls since `reset`.

        Args:
            limits: The maximum number of calls, with the same names as in `expect`.

        Raises:
            AssertionError: If a count exceeds its limit. The message lists the calls.
        """
        self._check(limits, "at most", lambda made, limit: made <= limit)

    def _check(self, counts: Mapping[str, int], bound: str, fits: Callable[[int, int], bool]) -> None:
        totals: Counter[str] = Counter()
        for name, count in counts.items():
            verb, _, kind = name.partition("_") if name not in ("list_folders", "now_ms") else (name, "", "")
            totals[verb] += count
            if kind and not fits(self.by_kind[verb, kind], count):
                raise AssertionError(f"{verb} of {kind}: {bound} {count}, made {self._calls(verb, kind)}")
        for verb in sorted({*self.counts, *totals}):
            if not fits(self.counts[verb], totals[verb]):
                raise AssertionError(f"{verb}: {bound} {totals[verb]}, made {self._calls(verb)}")

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        with self._lock:
            self.counts[verb] += 1
            self.by_kind[verb, key_kind(key)] += 1
            self.keys.append((verb, key))
        result = send()
        if verb == "get":
            with self._lock:
                self.bytes_read += len(result)
        return result

    def _calls(self, verb: str, kind: str = "") -> str:
        made = [key for name, key in self.keys if name == verb and kind in ("", key_kind(key))]
        return f"{len(made)}: {', '.join(made[:20])}" if made else "0"
