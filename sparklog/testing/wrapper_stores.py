"""Stores around another one: the base of test doubles, and one that counts requests for request budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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

    def expect(self, **at_most: int) -> None:
        """Assert the counts since `reset`: verbs not named must be 0, the named ones at most the number given.

        `create_commit=1` bounds one verb and kind; such a bound also allows the verb's total.
        """
        allowed: Counter[str] = Counter()
        for name, limit in at_most.items():
            verb, _, kind = name.partition("_") if name not in ("list_folders", "now_ms") else (name, "", "")
            allowed[verb] += limit
            if kind and self.by_kind[verb, kind] > limit:
                raise AssertionError(f"{verb} of {kind}: at most {limit} allowed, made {self._calls(verb)}")
        for verb, made in self.counts.items():
            if made > allowed[verb]:
                raise AssertionError(f"{verb}: at most {allowed[verb]} allowed, made {self._calls(verb)}")

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

    def _calls(self, verb: str) -> str:
        made = [key for name, key in self.keys if name == verb]
        return f"{len(made)}: {', '.join(made[:20])}"
