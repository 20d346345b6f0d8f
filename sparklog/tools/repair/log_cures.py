"""Cures of logs: documents by their checksums, entries by their copies, checkpoints by the commits.

| object                  | is written again from                                                                   |
|-------------------------|-----------------------------------------------------------------------------------------|
| any document            | itself, where its checksum tells what it was: bytes too many, one bit of its last bytes |
| entry of a group, of decisions, of leases | its copy, which has the same bytes                                    |
| copy of an entry        | the entry                                                                               |
| checkpoint of a topic   | the checkpoint before it, or nothing, and the commits up to its version                 |

A damaged entry that is not the newest stops who opens the log before it, although later entries carry the whole state:
copies of these let them begin there. With two copies above it no reader needs the entry any more, and it is set aside.

A damaged checkpoint is never removed where the state at its version or later cannot be had without it: readers would
take an older state for the newest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.chain import list_numbers
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.documents import document_of, following
from sparklog.log.journal.entry_log import EntryKind, StateEntry
from sparklog.log.journal.names import (
    CHECKPOINT_FOLDER,
    LOG_FOLDER,
    ROOT_JSON,
    ROOT_KEY,
    checkpoint_key,
    checkpoint_prefix,
    commit_key,
    entry_number,
    id_folder,
)
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, slice_table
from sparklog.log.state.commit import decode_commit
from sparklog.log.state.history import History
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.log.state.slice_table import Snapshot
from sparklog.maintenance.leases import LEASES
from sparklog.maintenance.outcomes import OUTCOMES
from sparklog.storage.store import Store
from sparklog.tools.repair.cures import Cure

_ALL = DECISIONS, GROUPS, LEASES, OUTCOMES, DEFAULTS
KINDS: dict[str, EntryKind[StateEntry]] = {kind.folder: kind for kind in _ALL}  # type: ignore[misc]
Decode = Callable[[bytes], object]
SEARCHED_BYTES = 32
"""Of the end of a document, where a flipped bit may hide its checksum."""
_END = re.compile(rb',"crc":[0-9]{1,10}\}')


def of_log(key: str) -> bool:
    """True for an object of a log, a checkpoint's table included, and for the root's id."""
    return f"/{LOG_FOLDER}/" in key or key == ROOT_KEY


def decoder_of(key: str) -> Decode | None:
    """Return what reads a document of this key, and raises where it is damaged; None for other objects."""
    if key == ROOT_KEY:
        return lambda data: ROOT_JSON.decode(data, key)
    number = entry_number(key)
    if number is None:
        return None
    kind = KINDS.get(key.partition("/")[0])
    if kind is not None:
        return partial(_decode_entry, kind, key, number)
    decode: Callable[..., object] = decode_checkpoint if f"/{CHECKPOINT_FOLDER}/" in key else decode_commit
    return lambda data: decode(data, key, number)


def _decode_entry(kind: EntryKind[StateEntry], key: str, number: int, data: bytes) -> StateEntry:
    entry = kind.decode(data, key, number)
    if f"{kind.folder}/{id_folder(entry.id)}/" != key[: key.index(LOG_FOLDER)]:
        raise Corrupt(f"{kind.what} of '{entry.id}' do not belong here", file=key)
    return entry


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
    prefix, _, _ = key.partition(f"/{LOG_FOLDER}/")
    number = entry_number(key)
    if number is None:
        return None
    is_copy = f"/{CHECKPOINT_FOLDER}/" in key
    other = commit_key(prefix, number) if is_copy else checkpoint_key(prefix, number)
    data = _read(store, other)
    if data is not None and is_sound(other, data):
        return Cure.whole(key, "written again from the entry" if is_copy else "written again from its copy", data)
    return cure_document(store, key) or (None if is_copy else _pass_entry(store, prefix, number))


def _pass_entry(store: Store, prefix: str, number: int) -> Cure | None:
    """Return the cure that leads readers past a damaged or missing entry: copies of the two newest."""
    numbers = list_numbers(store, prefix)
    newest = numbers.entries[-1] if numbers.entries else -1
    if numbers.entries[-(newest - number) :] != tuple(range(number + 1, newest + 1)):
        return None
    missing: list[tuple[str, bytes]] = []
    copies = 0
    for later in (newest, newest - 1):
        key, data = checkpoint_key(prefix, later), _read(store, commit_key(prefix, later))
        if later <= number or data is None or not is_sound(commit_key(prefix, later), data):
            continue
        copies += 1
        if (stored := _read(store, key)) is None or not is_sound(key, stored):
            missing.append((key, data))
    drops = (commit_key(prefix, number),) if copies == 2 and number in numbers.entries else ()
    if not missing and not drops:
        return None
    how = "set aside: later entries carry the whole state" if drops else "passed: a copy of a later entry is there"
    return Cure(commit_key(prefix, number), how, creates=tuple(missing), drops=drops)


def cure_checkpoint(store: Store, key: str, env: Env) -> Cure | None:
    """Return the cure of a topic's checkpoint, whose head or table has this key."""
    topic, name = key.split("/", 1)[0], key.rsplit("/", 1)[-1]
    version = int(name[:20])
    head_key = checkpoint_key(topic, version)
    history = History(store, topic)
    tables = [info.key for info in history.tables if info.key.startswith(f"{checkpoint_prefix(topic)}{version:020d}-")]
    history.distrust(version)
    snapshot = state_at(history, version)
    if snapshot is not None:
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


def state_at(history: History, version: int) -> Snapshot | None:
    """Return the state at a version; None: it cannot be had."""
    try:
        return history.at(version)
    except (NotFound, Corrupt, Conflict, BadRequest):
        return None
