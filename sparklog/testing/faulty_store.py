"""A store that injects the faults of object stores, networks and crashes, at scripted points or at random.

| fault          | effect for the caller             | what happened                                                   |
|----------------|-----------------------------------|-----------------------------------------------------------------|
| `ERROR_BEFORE` | `Unavailable`                     | the call had no effect                                          |
| `ERROR_AFTER`  | `Unavailable`                     | the call took effect, but its response was lost                 |
| `LATE`         | `Unavailable`                     | a create or delete takes effect some calls later                |
| `FULL`         | `Unavailable` with `is_denied`    | nothing was written, because no space is left                   |
| `TWICE`        | False                             | a client's retry found the object of its own first create       |
| `FALSE_EXISTS` | False                             | nothing was created, because a delete was in progress           |
| `ABSENT`       | `NotFound` or None                | a stale cache hides an existing object                          |
| `SHORT`        | fewer bytes than the object has   | the connection was closed early                                 |
| `FLIP`         | the bytes with one flipped bit    | a disk or memory is faulty                                      |
| `DELAY`        | the correct result, late          | the call waited before it took effect                           |
| `DELAY_AFTER`  | the correct result, late          | the response waited after the call took effect                  |
| `CRASH_BEFORE` | `Crash`                           | the process died before the call                                |
| `CRASH_AFTER`  | `Crash`                           | the process died after the effect, before it got the response   |

`Crash` is a `BaseException`, so that no `except Exception` catches it. Every call is a crash point with a label, which
consists of the verb and the kind of key: `create:commit`, `get:checkpoint` or `close:append`.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.storage.store import ObjectWriter, Store, key_kind
from sparklog.testing.wrapper_stores import WrapperStore, WrapperWriter


class Crash(BaseException):
    """The process that made this call has crashed. The test must drop the state of the process, and may start another
    process.
    """


class FaultKind(enum.Enum):
    """The kinds of faults, which the table at the top of the module describes."""

    ERROR_BEFORE = "error before"
    ERROR_AFTER = "error after"
    LATE = "late"
    FULL = "full"
    TWICE = "twice"
    FALSE_EXISTS = "false exists"
    ABSENT = "absent"
    SHORT = "short"
    FLIP = "flip"
    DELAY = "delay"
    DELAY_AFTER = "delay after"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


@dataclass(frozen=True)
class Fault:
    """A fault to inject.

    `amount` is the duration of a delay in seconds, the number of calls until a late effect, the number of bytes missing
    from a read, or the index of a flipped bit.
    """

    kind: FaultKind
    amount: float = 1


@dataclass(frozen=True)
class Call:
    """A call that will be made. `number` is the number of the call, starting at 0. `nth` is the number of the call
    among the calls with the same label.
    """

    verb: str
    key: str
    label: str
    number: int
    nth: int


Decide = Callable[[Call], "Fault | None"]

_FITTING: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.LATE: ("create", "delete"),
    FaultKind.FULL: ("create", "overwrite", "writer", "write", "close"),
    FaultKind.TWICE: ("create",),
    FaultKind.FALSE_EXISTS: ("create",),
    FaultKind.ABSENT: ("get", "stat"),
    FaultKind.SHORT: ("get",),
    FaultKind.FLIP: ("get",),
}


_VERBS = (
    *("get", "create", "overwrite", "writer", "write", "close", "list", "list_folders", "stat"),
    *("delete", "delete_many", "now_ms"),
)
_KINDS = ("root", "commit", "checkpoint", "append", "sealed", "other")


class Script:
    """A mapping of labels to faults. For example, `Script({("create:commit", 2): Fault(...)})` injects a fault into the
    third commit.

    If a label does not have a number, the fault applies to every call with the label. `struck` contains the calls that
    have failed.

    Example:
        script = testing.Script()
        world = testing.World()
        root = world.root(testing.FaultyStore(world.store, script, world.sleep))
        script.fail("create:commit", times=2)
        root.create_topic("t")
        assert len(script.struck) == 2
    """

    def __init__(self, faults: Mapping[str | tuple[str, int], Fault] | None = None) -> None:
        self.faults = dict(faults or {})
        self.struck: list[Call] = []
        self._next: dict[str, list[Fault]] = {}

    def fail(self, label: str, kind: FaultKind = FaultKind.ERROR_BEFORE, *, times: int = 1, amount: float = 1) -> None:
        """Make the next calls with a label fail.

        Args:
            label: The verb and kind of key of the calls: `create:commit`, `get:append`, `writer:sealed`, `list:other`.
            kind: The kind of fault. Some kinds apply only to certain verbs.
            times: The number of calls that fail.
            amount: The duration of a delay in seconds, the number of calls until a late effect, the number of bytes
                missing from a read, or the index of a flipped bit.

        Raises:
            BadRequest: If no call has this label, or if `kind` does not apply to the verb of the label.
        """
        verb, _, key = label.partition(":")
        if verb not in _VERBS or key not in _KINDS:
            raise BadRequest(
                f"no call has the label {label!r}: expected VERB:KIND, where VERB is one of {', '.join(_VERBS)} and "
                f"KIND is one of {', '.join(_KINDS)}"
            )
        if verb not in _FITTING.get(kind, (verb,)):
            raise BadRequest(f"{kind} applies to {' and '.join(_FITTING[kind])}, not to {verb!r} of {label!r}")
        if times < 1:
            raise BadRequest(f"times of {label!r} must be at least 1, found {times!r}")
        self._next.setdefault(label, []).extend([Fault(kind, amount)] * times)

    def __call__(self, call: Call) -> Fault | None:
        queue = self._next.get(call.label)
        fault = queue.pop(0) if queue else self.faults.get((call.label, call.nth)) or self.faults.get(call.label)
        if fault is not None:
            self.struck.append(call)
        return fault


class Seeded:
    """Random faults. For each call, draw a fault from `kinds` with probability `rate`, and inject the fault if it
    applies to the verb.

    `source` is the source of random numbers, and `max_delay` is the maximum duration of a delay in seconds.
    """

    def __init__(self, source: random.Random, rate: float, kinds: Sequence[FaultKind], max_delay: float = 1.0) -> None:
        self.source = source
        self.rate = rate
        self.kinds = tuple(kinds)
        self.max_delay = max_delay

    def __call__(self, call: Call) -> Fault | None:
        if self.source.random() >= self.rate:
            return None
        kind = self.source.choice(self.kinds)
        if call.verb not in _FITTING.get(kind, (call.verb,)):
            return None
        if kind in (FaultKind.DELAY, FaultKind.DELAY_AFTER):
            return Fault(kind, self.source.random() * self.max_delay)
        if kind is FaultKind.FLIP:
            return Fault(kind, self.source.randrange(1 << 20))
        return Fault(kind, self.source.randint(1, 8))


def _no_sleep(seconds: float) -> None:
    pass


class FaultyStore(WrapperStore):
    """A store that forwards calls to `inner`, unless `decide` returns a fault to inject.

    `sleep` is called with the seconds of a delay. If you use a virtual clock, pass the `sleep` of the clock. Late
    effects take place after the given number of further calls, or when `land` is called. The store can be pickled if
    `inner`, `decide` and `sleep` can be pickled.
    """

    def __init__(self, inner: Store, decide: Decide, sleep: Callable[[float], None] = _no_sleep) -> None:
        super().__init__(inner)
        self.decide = decide
        self.sleep = sleep
        self.calls: Counter[str] = Counter()
        """The number of calls so far, by label."""
        self._number = 0
        self._late: list[tuple[int, Callable[[], object]]] = []

    @property
    def has_late(self) -> bool:
        """True if calls with a late effect are pending."""
        return bool(self._late)

    def land(self) -> None:
        """Make all pending calls take effect."""
        late, self._late = self._late, []
        for _, effect in late:
            effect()

    def writer(self, key: str) -> ObjectWriter:
        return _FaultyWriter(self, key, super().writer(key))

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        """Count the call, apply due late effects, and then make the call or inject the fault that `decide` returns."""
        label = f"{verb}:{key_kind(key)}"
        call = Call(verb, key, label, self._number, self.calls[label])
        self._number += 1
        self.calls[label] += 1
        if self._late:
            due = [effect for number, effect in self._late if number <= call.number]
            self._late = [entry for entry in self._late if entry[0] > call.number]
            for effect in due:
                effect()
        fault = self.decide(call)
        if fault is None:
            return send()
        kind = fault.kind
        fits = verb in _FITTING.get(kind, ())
        if fits and kind in (FaultKind.TWICE, FaultKind.FALSE_EXISTS):
            if kind is FaultKind.TWICE:
                send()
            return False
        if fits and kind is FaultKind.ABSENT:
            if verb == "stat":
                return None
            raise NotFound(f"{key} does not exist in {self.location}: it was never written, or has been deleted")
        if fits and kind is FaultKind.LATE:
            self._late.append((self._number + int(fault.amount), send))
        if kind is FaultKind.CRASH_BEFORE:
            raise Crash(f"before {key}")
        if fits and kind is FaultKind.FULL:
            raise Unavailable(f"{key} in {self.location}: no space left (injected fault)", is_denied=True)
        if kind in (FaultKind.ERROR_BEFORE, FaultKind.LATE):
            raise Unavailable(f"{key} in {self.location}: injected fault ({kind.value}); retry")
        if kind is FaultKind.DELAY:
            self.sleep(fault.amount)
        result = send()
        if kind is FaultKind.CRASH_AFTER:
            raise Crash(f"after {key}")
        if kind is FaultKind.ERROR_AFTER:
            raise Unavailable(f"{key} in {self.location}: injected fault ({kind.value}); the result is unknown")
        if kind is FaultKind.DELAY_AFTER:
            self.sleep(fault.amount)
        return _corrupted(result, fault) if fits else result


def _corrupted(data: bytes, fault: Fault) -> bytes:
    if fault.kind is FaultKind.SHORT:
        return data[: max(0, len(data) - int(fault.amount))]
    corrupted = bytearray(data)
    if data:
        bit = int(fault.amount) % (8 * len(data))
        corrupted[bit // 8] ^= 1 << bit % 8
    return bytes(corrupted)


class _FaultyWriter(WrapperWriter):
    """A writer of a data object that injects faults, with the labels `write:<kind>` and `close:<kind>`."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._store.request("write", self._key, lambda: self._inner.write(data))

    def close(self) -> None:
        self._store.request("close", self._key, self._inner.close)
