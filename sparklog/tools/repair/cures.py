"""Cures: which bytes an object should have, how they get there without a moment worse than the damage, and a report.

The bytes that were there are copied below `_repair/` first, where nothing reads them. Then the new ones take their
place, at once where the store can do that. So a process that dies on the way leaves what was there, or the cure, and
perhaps a copy. Of logs:

| object                  | is written again from                                                                   |
|-------------------------|-----------------------------------------------------------------------------------------|
| any document            | itself, where its checksum tells what it was: bytes too many, one bit of its last bytes |
| entry of a group, of decisions, of leases | its copy, which has the same bytes                                    |
| copy of an entry        | the entry                                                                               |
| root defaults           | their copy in `_defaults`, and the copy from the entry                                  |
| checkpoint of a topic   | the checkpoint before it, or nothing, and the commits up to its version                 |

A damaged entry that is not the newest stops who opens the log before it, although later entries carry the whole state:
copies of these let them begin there. With two copies above it no reader needs the entry any more, and it is set aside.

A damaged checkpoint is never removed where the state at its version or later cannot be had without it: readers would
take an older state for the newest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sparklog.common.units import count
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.log.journal import names as naming
from sparklog.log.journal.chain import list_numbers
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.documents import document_of, following
from sparklog.log.journal.names import REPAIR_FOLDER
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, slice_table
from sparklog.log.state.commit import decode_commit
from sparklog.log.state.history import History
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.log.state.root_defaults import ID as DEFAULTS_ID
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import Head
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.output import json_value
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import RESTORE, Finding, Report
from sparklog.tools.verification.slice_checks import REBUILD

PIECE_BYTES = 8 << 20
Patch: TypeAlias = tuple[int, bytes]
"""Where bytes of an object change, and what they become."""


@dataclass(frozen=True, slots=True)
class Cure:
    """Changes that make an object what it should be; `how` is in words, for people.

    * `creates`: keys and bytes of objects that are made first
    * `size`, `patches`: the object's new length and its bytes that change; `size` None: it stays as it is
    * `drops`: keys of objects that are set aside last
    * `damaged`: keys of what it cures
    """

    key: str
    how: str
    size: int | None = None
    patches: tuple[Patch, ...] = ()
    creates: tuple[tuple[str, bytes], ...] = ()
    drops: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @classmethod
    def whole(cls, key: str, how: str, data: bytes, **others: tuple[object, ...]) -> Cure:
        """Return the cure that gives an object these bytes."""
        return cls(key, how, len(data), ((0, data),), **others)  # type: ignore[arg-type]

    def patched(self, start: int, data: bytes) -> bytes:
        """Return bytes of the object that begin at `start`, as they should be."""
        changed = bytearray(data)
        for position, new in self.patches:
            low, high = max(position, start), min(position + len(new), start + len(data))
            if low < high:
                changed[low - start : high - start] = new[low - position : high - position]
        return bytes(changed)


def in_the_way(store: Store, key: str) -> bool:
    """Return True if a folder, link or special file has the name of an object, which prevents writing it."""
    folder, _, name = key.rpartition("/")
    return name in store.obstacles(f"{folder}/" if folder else "")


@dataclass(slots=True)
class Healer:
    """Applies cures in a store. `folder`: below `_repair/`, for what is set aside; `aside`: its keys so far."""

    store: Store
    folder: str
    aside: dict[str, str] = field(default_factory=dict)

    def can_apply(self, cure: Cure) -> bool:
        """Return True if no folder, link or special file has the name of an object that the cure writes."""
        written = [key for key, _ in cure.creates] + ([] if cure.size is None else [cure.key])
        return not any(in_the_way(self.store, key) for key in written)

    def apply(self, cure: Cure) -> None:
        """Apply a cure; what it creates, if that exists already, is of a repair that died."""
        for key, data in cure.creates:
            self.store.create(key, data)
        if cure.size is not None:
            self.keep(cure.key)
            self.store.overwrite(cure.key, self._parts(cure, cure.size))
        for key in cure.drops:
            self.keep(key)
            self.store.delete(key)

    def keep(self, key: str) -> None:
        """Copy an object where nothing reads it, unless a copy of this run has it already."""
        info = self.store.stat(key)
        if info is None or key in self.aside:
            return
        copy = f"{REPAIR_FOLDER}/{self.folder}/{key}"
        writer = self.store.writer(copy)
        try:
            for start in range(0, info.size, PIECE_BYTES):
                writer.write(self.store.get(key, start, PIECE_BYTES))
        except BaseException:
            writer.discard()
            raise
        writer.close()
        self.aside[key] = copy

    def _parts(self, cure: Cure, size: int) -> Iterator[bytes]:
        """Yield the new bytes of the object in pieces; bytes that no patch gives are read from the old one."""
        if len(cure.patches) == 1 and cure.patches[0][0] == 0 and len(cure.patches[0][1]) == size:
            yield cure.patches[0][1]
            return
        for start in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - start)
            old = self.store.get(cure.key, start, length)
            yield cure.patched(start, old + bytes(length - len(old)))


@dataclass(frozen=True, slots=True)
class Repaired:
    """One object that was cured or set aside: `how` in words; `aside`: where the bytes are that were there before."""

    file: str
    how: str
    aside: str | None = None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome. `executed` False: nothing was changed, `repaired` is what would be.

    `left`: damage that is still there, or would be; `before`: how many problems there were at first.
    """

    location: str
    executed: bool
    repaired: tuple[Repaired, ...]
    left: tuple[Finding, ...]
    before: int

    @property
    def sound(self) -> bool:
        """True if no damage is left."""
        return not self.left


def left_after(report: Report, files: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings of a report that the repair of these files does not cure."""
    left = (finding for finding in report.findings if finding.file not in files)
    return tuple(replace(finding, remedy=RESTORE) if finding.remedy == REBUILD else finding for finding in left)


def summary(report: RepairReport) -> str:
    """Return what was done, file by file, what is left, and the verdict in one line."""
    lines = [f"{item.file}: {'' if report.executed else 'would be '}{item.how}" for item in report.repaired]
    lines += [f"left: {finding}" for finding in report.left]
    done = f"{count(len(report.repaired), 'file')} of {report.location}"
    left = f"{count(len(report.left), 'problem')} left that no rebuild cures" if report.left else "no damage is left"
    if not lines:
        lines.append(f"nothing to repair in {report.location}")
    elif report.executed:
        lines.append(f"repaired {done}; {left}")
    else:
        lines.append(f"would repair {done}: nothing was changed, --execute does it; {left}")
    return "\n".join(lines)


def document(report: RepairReport) -> dict[str, object]:
    return {
        "location": report.location,
        "executed": report.executed,
        "sound": report.sound,
        "problems": report.before,
        "repaired": json_value(report.repaired),
        "left": json_value(report.left),
    }


Decode = Callable[[bytes], object]
SEARCHED_BYTES = 32
"""Of the end of a document, where a flipped bit may hide its checksum."""
_END = re.compile(rb',"crc":[0-9]{1,10}\}')


def of_log(key: str) -> bool:
    """True for an object of a log, a checkpoint's table included, and for the root's id."""
    return f"/{naming.LOG_FOLDER}/" in key or key == naming.ROOT_KEY or key.startswith(f"{naming.DEFAULTS_FOLDER}/")


def decoder_of(key: str) -> Decode | None:
    """Return what reads a document of this key, and raises where it is damaged; None for other objects."""
    if key == naming.ROOT_KEY:
        return lambda data: naming.ROOT_JSON.decode(data, key)
    number = naming.entry_number(key)
    if number is None:
        return None
    if key.startswith(f"{naming.DEFAULTS_FOLDER}/"):
        return lambda data: DEFAULTS.decode(data, key, number)
    kind = JOURNAL_IN.get(key.partition("/")[0])
    if kind is not None:
        prefix = key.partition(f"/{naming.LOG_FOLDER}/")[0]
        return lambda data: kind.decode_in(prefix, data, key, number)
    decode: Callable[..., object] = decode_checkpoint if f"/{naming.CHECKPOINT_FOLDER}/" in key else decode_commit
    return lambda data: decode(data, key, number)


def is_sound(key: str, data: bytes) -> bool:
    decode = decoder_of(key)
    try:
        return decode is not None and decode(data) is not None
    except (Corrupt, BadRequest):
        return False


def cure_document(store: Store, key: str) -> Cure | None:
    """Return the cure of a document that its checksum can tell."""
    data = _read(store, key)
    if data is None or decoder_of(key) is None or is_sound(key, data):
        return None
    for how, candidate in _candidates(data):
        if is_sound(key, candidate):
            return Cure.whole(key, how, candidate)
    return None


def _candidates(data: bytes) -> Iterator[tuple[str, bytes]]:
    end = len(document_of(data))
    yield "cut off what is not its own", data[:end]
    yield "cut off what is not its own", data[: end + _tail_bytes(data[:end])]
    for match in _END.finditer(data):
        # The newline that ends a document, before its records.
        rest = data[match.end() + 1 :]
        yield "its flipped bit turned back", data[: match.end()] + b"\n" + rest
    for position in range(max(0, end - SEARCHED_BYTES), end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            yield "its flipped bit turned back", bytes(flipped)


def _tail_bytes(document: bytes) -> int:
    """Return how many bytes follow a document, as far as it says so."""
    try:
        return sum(nbytes for nbytes, _ in following(json.loads(document)))
    except (ValueError, AttributeError, RecursionError):
        return 0


def _read(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except (NotFound, Corrupt):
        return None


def cure_entry(store: Store, key: str) -> Cure | None:
    """Return the cure of an entry or a copy in a log of entries: by the other one, by itself, or by later entries."""
    prefix, _, _ = key.partition(f"/{naming.LOG_FOLDER}/")
    number = naming.entry_number(key)
    if number is None:
        return None
    if prefix == DEFAULTS.prefix(DEFAULTS_ID) and (cure := cure_defaults(store, key, number)) is not None:
        return cure
    is_copy = f"/{naming.CHECKPOINT_FOLDER}/" in key
    other = naming.commit_key(prefix, number) if is_copy else naming.checkpoint_key(prefix, number)
    data = _read(store, other)
    if data is not None and is_sound(other, data):
        return Cure.whole(key, "written again from the entry" if is_copy else "written again from its copy", data)
    own = _read(store, key)
    # If both entries of a broken chain are intact, it is unknown which of them is wrong.
    is_passed = not is_copy and (own is None or not is_sound(key, own))
    return cure_document(store, key) or (_pass_entry(store, prefix, number) if is_passed else None)


def cure_defaults(store: Store, key: str, number: int) -> Cure | None:
    """Return the cure of an entry of the root defaults, or of its copy, from the other one."""
    is_copy = key.startswith(f"{naming.DEFAULTS_FOLDER}/")
    entry = naming.commit_key(DEFAULTS.prefix(DEFAULTS_ID), number)
    other = entry if is_copy else naming.defaults_copy_key(number)
    data = _read(store, other)
    if data is None or not is_sound(other, data):
        return None
    return Cure.whole(key, f"written again from {'the entry' if is_copy else 'its copy'}", data, damaged=(key,))


def _pass_entry(store: Store, prefix: str, number: int) -> Cure | None:
    """Return the cure that leads readers past a damaged or missing entry: copies of the two newest."""
    numbers = list_numbers(store, prefix)
    newest = numbers.entries[-1] if numbers.entries else -1
    if numbers.entries[-(newest - number) :] != tuple(range(number + 1, newest + 1)):
        return None
    missing: list[tuple[str, bytes]] = []
    copies = 0
    for later in (newest, newest - 1):
        key, data = naming.checkpoint_key(prefix, later), _read(store, naming.commit_key(prefix, later))
        if later <= number or data is None or not is_sound(naming.commit_key(prefix, later), data):
            continue
        copies += 1
        if (stored := _read(store, key)) is None or not is_sound(key, stored):
            missing.append((key, data))
    drops = (naming.commit_key(prefix, number),) if copies == 2 and number in numbers.entries else ()
    if not missing and not drops:
        return None
    how = "set aside: later entries carry the whole state" if drops else "passed: a copy of a later entry is there"
    return Cure(naming.commit_key(prefix, number), how, creates=tuple(missing), drops=drops)


def cure_checkpoint(store: Store, key: str, env: Env) -> Cure | None:
    """Return the cure of a topic's checkpoint, whose head or table has this key."""
    topic, name = naming.key_topic(key) or "", key.rsplit("/", 1)[-1]
    version = int(name[:20])
    head_key = naming.checkpoint_key(topic, version)
    history = History(store, topic)
    tables = [
        info.key for info in history.tables if info.key.startswith(f"{naming.checkpoint_prefix(topic)}{version:020d}-")
    ]
    history.distrust(version)
    snapshot = state_at(history, version)
    if snapshot is not None and _is_followed(store, topic, snapshot.head):
        table_key, data, ref = slice_table(snapshot, env.new_id())
        how = "written again from the commits"
        head = encode_checkpoint(Checkpoint(snapshot.head, ref))
        return Cure.whole(head_key, how, head, creates=((table_key, data),), drops=tuple(tables))
    newest = int(history.commits.version[-1]) if len(history.commits) else -1
    base = history.base_of(newest)
    if base is None or base < version:
        return None
    heads = (head_key,) if version in history.checkpoints else ()
    return Cure(head_key, "set aside: a newer one has all that readers need", drops=(*heads, *tables))


def _is_followed(store: Store, topic: str, head: Head) -> bool:
    """Return False if the next commit does not follow `head`, so that the checkpoint may be right."""
    key = naming.commit_key(topic, head.version + 1)
    data = _read(store, key)
    if data is None:
        return True
    try:
        return decode_commit(data, key, head.version + 1, whole=False).prev_crc == head.crc
    except (Corrupt, BadRequest):
        return True


def state_at(history: History, version: int) -> Snapshot | None:
    """Return the state at a version; None: it cannot be had."""
    try:
        return history.at(version)
    except (NotFound, Corrupt, Conflict, BadRequest):
        return None
