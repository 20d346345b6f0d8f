"""Fixes of log objects: commits, entries, root defaults and checkpoints.

| object                                    | is rebuilt from                                                          |
|-------------------------------------------|--------------------------------------------------------------------------|
| any document                              | its own bytes, if the checksum is valid after extra bytes are removed or |
|                                           | one bit near the end is flipped                                          |
| entry of a group, decisions or leases     | its copy, which has the same bytes                                       |
| copy of an entry                          | the entry                                                                |
| root defaults                             | their copy in `_defaults`, and this copy from the entry                  |
| checkpoint of a topic                     | the previous checkpoint, if any, and the commits up to its version       |

Readers that start before a damaged entry fail at this entry, even if a later entry contains the complete state. If
later entries have copies, readers can start after the damaged entry. If the two latest entries have copies, readers do
not require the damaged entry, so the entry is set aside.

A damaged checkpoint is not removed if the state at the checkpoint's version or at a later version cannot be rebuilt
without the checkpoint. Otherwise readers would return an outdated state as the latest state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.log.journal import names as naming
from sparklog.log.journal.chain import list_numbers
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.documents import document_of, following
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, slice_table
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.history import History
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.log.state.root_defaults import ID as DEFAULTS_ID
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import TopicState
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.storage.store import Store
from sparklog.tools.repair.fixes import Fix

SEARCHED_BYTES = 32
"""The number of bytes at the end of a document that are searched for a flipped bit that hides the checksum."""
_END = re.compile(rb',"crc":[0-9]{1,10}\}')


def is_log_object(key: str) -> bool:
    """Return True if the key is the key of a log object, including checkpoint tables, or of the file that contains the
    root id.
    """
    return f"/{naming.LOG_FOLDER}/" in key or key == naming.ROOT_KEY or key.startswith(f"{naming.DEFAULTS_FOLDER}/")


def decoder_for(key: str) -> Callable[[bytes], object] | None:
    """Return the decoder of the document with this key, or None if the object with this key is not a document.

    The decoder raises an exception if the document is corrupt.
    """
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


def is_valid(key: str, data: bytes | None) -> bool:
    """Return True if `data` is a valid document for this key."""
    decode = decoder_for(key)
    try:
        return data is not None and decode is not None and decode(data) is not None
    except (Corrupt, BadRequest):
        return False


def fix_document(store: Store, key: str) -> Fix | None:
    """Return the fix of a document, or None if the original bytes cannot be confirmed by the checksum."""
    data = _read(store, key)
    if data is None or decoder_for(key) is None or is_valid(key, data):
        return None
    for how, candidate in _candidates(data):
        if is_valid(key, candidate):
            return Fix.rewrite(key, how, candidate)
    return None


def _candidates(data: bytes) -> Iterator[tuple[str, bytes]]:
    document = document_of(data)
    end = len(document)
    yield "truncated after the last valid byte", document
    yield "truncated after the last valid byte", data[: end + _following_bytes(document)]
    for match in _END.finditer(data):
        # The newline between the document and its records was damaged.
        rest = data[match.end() + 1 :]
        yield "corrected by flipping one bit back", data[: match.end()] + b"\n" + rest
    for position in range(max(0, end - SEARCHED_BYTES), end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            yield "corrected by flipping one bit back", bytes(flipped)


def _following_bytes(document: bytes) -> int:
    """Return the number of bytes that follow a document according to the document, or 0 if it cannot be parsed."""
    try:
        return sum(nbytes for nbytes, _ in following(json.loads(document)))
    except (ValueError, AttributeError, RecursionError):
        return 0


def _read(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except (NotFound, Corrupt):
        return None


def fix_entry(store: Store, key: str) -> Fix | None:
    """Return the fix of an entry or of its copy, or None if the object cannot be fixed.

    The entry is rebuilt from its copy, or the copy is rebuilt from the entry, or the object is rebuilt from its own
    bytes. If none of these is possible, later entries are copied.
    """
    prefix, _, _ = key.partition(f"/{naming.LOG_FOLDER}/")
    number = naming.entry_number(key)
    if number is None:
        return None
    if prefix == DEFAULTS.prefix(DEFAULTS_ID) and (fix := fix_defaults(store, key, number)) is not None:
        return fix
    is_copy = f"/{naming.CHECKPOINT_FOLDER}/" in key
    other = naming.commit_key(prefix, number) if is_copy else naming.checkpoint_key(prefix, number)
    data = _read(store, other)
    if data is not None and is_valid(other, data):
        return Fix.rewrite(key, f"rebuilt from {'the entry' if is_copy else 'its copy'}", data)
    # If both entries at a break in the chain are intact, it is unknown which entry is wrong.
    can_skip = not is_copy and not is_valid(key, _read(store, key))
    return fix_document(store, key) or (_skip_entry(store, prefix, number) if can_skip else None)


def fix_defaults(store: Store, key: str, number: int) -> Fix | None:
    """Return the fix of a root defaults entry or of its copy in `_defaults`. The object is rebuilt from its
    counterpart.
    """
    is_copy = key.startswith(f"{naming.DEFAULTS_FOLDER}/")
    entry = naming.commit_key(DEFAULTS.prefix(DEFAULTS_ID), number)
    other = entry if is_copy else naming.defaults_copy_key(number)
    data = _read(store, other)
    if data is None or not is_valid(other, data):
        return None
    return Fix.rewrite(key, f"rebuilt from {'the entry' if is_copy else 'its copy'}", data, damaged=(key,))


def _skip_entry(store: Store, prefix: str, number: int) -> Fix | None:
    """Return the fix that copies the two latest entries, so that readers can start after a damaged or missing entry."""
    numbers = list_numbers(store, prefix)
    latest = numbers.entries[-1] if numbers.entries else -1
    if numbers.entries[-(latest - number) :] != tuple(range(number + 1, latest + 1)):
        return None
    missing_copies: list[tuple[str, bytes]] = []
    valid_entries = 0
    for later in (latest, latest - 1):
        key, data = naming.checkpoint_key(prefix, later), _read(store, naming.commit_key(prefix, later))
        if later <= number or data is None or not is_valid(naming.commit_key(prefix, later), data):
            continue
        valid_entries += 1
        if not is_valid(key, _read(store, key)):
            missing_copies.append((key, data))
    drops = (naming.commit_key(prefix, number),) if valid_entries == 2 and number in numbers.entries else ()
    if not missing_copies and not drops:
        return None
    how = "set aside, because later entries have the complete state" if drops else "bypassed by copying a later entry"
    return Fix(naming.commit_key(prefix, number), how, creates=tuple(missing_copies), drops=drops)


def fix_checkpoint(store: Store, key: str, env: Env) -> Fix | None:
    """Return the fix of a topic's checkpoint. `key` is the key of its document or of its table."""
    topic, name = naming.key_topic(key) or "", key.rsplit("/", 1)[-1]
    version = int(name[:20])
    document_key = naming.checkpoint_key(topic, version)
    history = History(store, topic)
    table_prefix = f"{naming.checkpoint_prefix(topic)}{version:020d}-"
    old_tables = [info.key for info in history.tables if info.key.startswith(table_prefix)]
    history.mark_damaged(version)
    snapshot = state_at(history, version)
    if snapshot is not None and _is_followed(store, topic, snapshot.state):
        table_key, table, ref = slice_table(snapshot, env.new_id())
        data = encode_checkpoint(Checkpoint(snapshot.state, ref))
        creates, drops = ((table_key, table),), tuple(old_tables)
        return Fix.rewrite(document_key, "rebuilt from the commits", data, creates=creates, drops=drops)
    latest = int(history.commits.version[-1]) if len(history.commits) else -1
    base = history.base_of(latest)
    if base is None or base < version:
        return None
    documents = (document_key,) if version in history.checkpoints else ()
    return Fix(document_key, "set aside, because readers only need a later checkpoint", drops=(*documents, *old_tables))


def _is_followed(store: Store, topic: str, state: TopicState) -> bool:
    """Return False if the next commit does not follow `state`, in which case the checkpoint may be valid."""
    key = naming.commit_key(topic, state.version + 1)
    data = _read(store, key)
    if data is None:
        return True
    try:
        return decode_commit(data, key, state.version + 1, check_sections=False).prev_crc == state.crc
    except (Corrupt, BadRequest):
        return True


def state_at(history: History, version: int) -> Snapshot | None:
    """Return the state at a version, or None if it cannot be rebuilt."""
    try:
        return history.at(version)
    except (NotFound, Corrupt, Conflict, BadRequest):
        return None
