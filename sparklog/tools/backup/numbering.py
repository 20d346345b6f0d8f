"""Numbers of backups: they follow the order of the cuts, and each is decided once.

A run looks which number is the newest, takes its cut, and creates `_backups/begun/<number>.json` for the next number.
Where another run was quicker it takes a new cut: so the cut of a backup begins after the cut of the one before it has
ended, however long each of them copies.

A number is decided by who creates `_backups/<number>.json`: its run, with a manifest, or a prune that takes the run for
dead, with an object that says so. The first one counts. A run that stood still until a prune had taken its files away
can no longer publish what it made.

| member of a number that was given up | meaning                                                   |
|--------------------------------------|-----------------------------------------------------------|
| format, readFeatures                 | as in a manifest                                          |
| number                               | the number in its name                                    |
| rootId                               | of the root whose backups lie here                        |
| givenUpMs                            | when, ms since the epoch                                  |
"""

from __future__ import annotations

from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.documents import FORMAT
from sparklog.log.journal.names import VERSION_DIGITS
from sparklog.storage.store import Store


BACKUPS_FOLDER = "_backups"
BEGUN_FOLDER = f"{BACKUPS_FOLDER}/begun"
GIVEN_UP_FIELDS = ("format", "readFeatures", "number", "rootId", "givenUpMs", "crc")


def backup_key(number: int) -> str:
    """The key of a backup's manifest."""
    return f"{BACKUPS_FOLDER}/{number:020d}.json"


def begun_key(number: int) -> str:
    """The key by which a run has taken a number."""
    return f"{BEGUN_FOLDER}/{number:020d}.json"


def backup_numbers(store: Store) -> list[int]:
    """Numbers that are decided in a store, in order."""
    return _numbers(store, f"{BACKUPS_FOLDER}/0")


def newest_number(store: Store) -> int:
    """The newest number that is taken or decided, 0 for none."""
    # In this order: a number is decided before its run lets go of it.
    begun = _numbers(store, f"{BEGUN_FOLDER}/")
    return max([0, *begun, *backup_numbers(store)])


def take_number(store: Store, number: int, run: str) -> bool:
    """Take a number for a run; False if another run has it."""
    data = json_fields.encode({"format": FORMAT, "readFeatures": [], "id": run})
    taken = store.create(begun_key(number), data) or store.get(begun_key(number)) == data
    return taken and store.stat(backup_key(number)) is None


def give_up_begun(store: Store, root_id: str, now_ms: int) -> None:
    """Decide all numbers that are taken: their runs are dead, or must not publish any more."""
    for number in _numbers(store, f"{BEGUN_FOLDER}/"):
        document = {"number": number, "rootId": root_id, "givenUpMs": now_ms}
        store.create(backup_key(number), json_fields.encode({"format": FORMAT, "readFeatures": [], **document}))
        store.delete(begun_key(number))


def is_given_up(data: bytes, key: str) -> bool:
    """Whether an object under the key of a backup says that there is none."""
    doc = json_fields.decode(data, key, "backup")
    if not doc.has("givenUpMs"):
        return False
    doc.only(frozenset(GIVEN_UP_FIELDS))
    return True


def _numbers(store: Store, prefix: str) -> list[int]:
    found = []
    for info in store.list(prefix):
        digits, _, suffix = info.key.rsplit("/", 1)[-1].partition(".")
        if suffix == "json" and digits.isdigit() and len(digits) == VERSION_DIGITS:
            found.append(int(digits))
    return found
