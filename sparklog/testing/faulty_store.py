"""A store that fails on purpose: every fault an object store, a network or a crash can show, scripted or by seed.

| fault          | what the caller sees                  | what happened                                               |
|----------------|---------------------------------------|-------------------------------------------------------------|
| `ERROR_BEFORE` | Unavailable                           | nothing                                                     |
| `ERROR_AFTER`  | Unavailable                           | the call took effect: a lost answer                         |
| `LATE`         | Unavailable                           | a create or delete that takes effect some calls later       |
| `TWICE`        | False                                 | a client's retry met its own first create: "exists" is ours |
| `FALSE_EXISTS` | False                                 | nothing: a racing delete made the store say "exists"        |
| `ABSENT`       | NotFound, None or no such entry       | a stale cache hides an object that exists                   |
| `SHORT`        | fewer bytes than the object has       | a connection that broke off                                 |
| `FLIP`         | the bytes with one bit turned         | a bad disk or memory                                        |
| `DELAY`        | the right answer, later               | the call waited before its effect                           |
| `DELAY_AFTER`  | the right answer, later               | the answer waited after the effect                          |
| `CRASH_BEFORE` | Crash                                 | the process died before the call                            |
| `CRASH_AFTER`  | Crash                                 | the process died after the effect, before it knew           |

`Crash` is a BaseException, so no `except Exception` survives it. Every call is a labelled crash point: its label is the
verb and the kind of key, such as `create:commit`, `get:checkpoint` or `close:append`.
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
    """The process that made this call is dead: its memory must be dropped, and another one may be started."""


class FaultKind(enum.Enum):
    ERROR_BEFORE = "error before"
    ERROR_AFTER = "error after"
    LATE = "late"
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
    """`amount`: seconds of a delay, calls until a late effect, bytes that a read lacks, index of a flipped bit."""

    kind: FaultKind
    amount: float = 1


@dataclass(frozen=True)
class Call:
    """One call about to be made: `number` counts all calls from 0, `nth` those of this label from 0."""

    verb: str
    key: str
    label: str
    number: int
    nth: int


Decide = Callable[[Call], "Fault | None"]

_FITTING: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.LATE: ("create", "delete"),
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
    """Faults at labelled points: `Script({("create:commit", 2): Fault(...)})` strikes the third create of a commit.

    A label without a number strikes every such call. `struck` lists the calls that were.

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
        """Make the next calls of a label fail.

        Args:
            label: verb and kind of key: `create:commit`, `get:append`, `writer:sealed`, `list:other`.
            kind: of failure; not all fit all verbs.
            times: so many calls.
            amount: seconds of a delay, calls until a late effect, bytes that a read lacks, index of a flipped bit.

        Raises:
            BadRequest: no call has this label, or fails like that.
        """
        verb, _, key = label.partition(":")
        if verb not in _VERBS or key not in _KINDS:
            raise BadRequest(
                f"no call has the label {label!r}: expected VERB:KIND, VERB one of {', '.join(_VERBS)}, KIND one of "
                f"{', '.join(_KINDS)}"
            )
        if verb not in _FITTING.get(kind, (verb,)):
            raise BadRequest(f"{kind} fits {' and '.join(_FITTING[kind])}, not {verb!r} of {label!r}")
        if times < 1:
            raise BadRequest(f"times of {label!r} is 1 or more, found {times!r}")
        self._next.setdefault(label, []).extend([Fault(kind, amount)] * times)

    def __call__(self, call: Call) -> Fault | None:
        queue = self._next.get(call.label)
        fault = queue.pop(0) if queue else self.faults.get((call.label, call.nth)) or self.faults.get(call.label)
        if fault is not None:
            self.struck.append(call)
        return fault


class Seeded:
    """Faults at random: each call fails with probability `rate`, in a way drawn from `kinds` that fits its verb."""

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
    """Ask `decide` before each call if and how it fails, and pass it on otherwise.

    `sleep` takes seconds: pass a virtual clock's. Effects that are late land when the given number of further calls has
    been made, or at `land`. Picklable only if `inner`, `decide` and `sleep` are.
    """

    def __init__(self, inner: Store, decide: Decide, sleep: Callable[[float], None] = _no_sleep) -> None:
        super().__init__(inner)
        self.decide = decide
        self.sleep = sleep
        self.calls: Counter[str] = Counter()
        """Calls by label: the crash points met so far."""
        self._number = 0
        self._late: list[tuple[int, Callable[[], object]]] = []

    @property
    def has_late(self) -> bool:
        return bool(self._late)

    def land(self) -> None:
        late, self._late = self._late, []
        for _, effect in late:
            effect()

    def writer(self, key: str) -> ObjectWriter:
        return _FaultyWriter(self, key, super().writer(key))

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        """Count the call, let due late effects land, and make it or fail as `decide` says."""
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
            raise NotFound(f"no object {key} in {self.location}: it was never written, or has been deleted")
        if fits and kind is FaultKind.LATE:
            self._late.append((self._number + int(fault.amount), send))
        if kind is FaultKind.CRASH_BEFORE:
            raise Crash(f"before {key}")
        if kind in (FaultKind.ERROR_BEFORE, FaultKind.LATE):
            raise Unavailable(f"{key} in {self.location}: injected fault ({kind.value}): try again")
        if kind is FaultKind.DELAY:
            self.sleep(fault.amount)
        answer = send()
        if kind is FaultKind.CRASH_AFTER:
            raise Crash(f"after {key}")
        if kind is FaultKind.ERROR_AFTER:
            raise Unavailable(f"{key} in {self.location}: injected fault ({kind.value}): outcome unknown, look again")
        if kind is FaultKind.DELAY_AFTER:
            self.sleep(fault.amount)
        return _damaged(answer, fault) if fits else answer


def _damaged(data: bytes, fault: Fault) -> bytes:
    if fault.kind is FaultKind.SHORT:
        return data[: max(0, len(data) - int(fault.amount))]
    damaged = bytearray(data)
    if data:
        bit = int(fault.amount) % (8 * len(data))
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


class _FaultyWriter(WrapperWriter):
    """Faults while a data object is written: points `write:<kind>` and `close:<kind>`."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._store.request("write", self._key, lambda: self._inner.write(data))

    def close(self) -> None:
        self._store.request("close", self._key, self._inner.close)
