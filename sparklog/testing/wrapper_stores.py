"""Stores around another one: the base of test doubles, and one that counts requests for request budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import Store, key_kind
from sparklog.storage.wrapper_store import WrapperStore, WrapperWriter

__all__ = ["CountingStore", "WrapperStore", "WrapperWriter"]


class CountingStore(WrapperStore):
    """Count every call by verb, a method of `Store`, and by kind of key (`sparklog.storage.store.key_kind`).

    A data object counts as one `writer` when it is begun. A pickled copy goes on from these counts for itself.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = ForkLock()
        self.counts: Counter[str] = Counter()
        self.by_kind: Counter[tuple[str, str]] = Counter()
        """Calls by verb and kind of key, e.g. `("create", "commit")`."""
        self.keys: list[tuple[str, str]] = []
        """Every call in order: verb and key (or prefix)."""
        self.bytes_read = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=ForkLock())

    def reset(self) -> None:
        with self._lock:
            self.counts.clear()
            self.by_kind.clear()
            self.keys.clear()
            self.bytes_read = 0

    def expect(self, **counts: int) -> None:
        """Assert the exact number of calls since `reset`.

        Args:
            counts: calls by verb (`get=2`) or by verb and kind of key (`create_commit=1`). The counts of a verb's kinds
                add up to its total. Verbs that are not listed must not have been called.

        Raises:
            AssertionError: a count differs; the message lists the calls.
        """
        self._check(counts, "expected", lambda made, count: made == count)

    def expect_at_most(self, **limits: int) -> None:
        """Assert upper bounds for the number of calls since `reset`; `limits` has the keys of `expect`."""
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
        answer = send()
        if verb == "get":
            with self._lock:
                self.bytes_read += len(answer)
        return answer

    def _calls(self, verb: str, kind: str = "") -> str:
        made = [key for name, key in self.keys if name == verb and kind in ("", key_kind(key))]
        return f"{len(made)}: {', '.join(made[:20])}" if made else "0"
