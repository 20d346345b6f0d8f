"""An independent model of transactions, which reads raw objects as they are written and knows which must be visible.

It shares no code with the tested modules. A slice of a commit with `txn` is visible if the COMMIT of its n, which is
its first decision, references the version of the commit in its topic. A slice of any other commit is visible. The
outcomes that topics record are compared with the decisions immediately.

If a writer finds that its entry follows a lost entry, it withdraws its entry. A withdrawn entry never counts, unless it
is restored because another entry follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import crc32c

from sparklog.storage.memory import MemoryStore
from tests.log.simulation.model import parsed
from tests.support.simulation.scheduler import expect

_ENTRY = re.compile(r"([^_/][^/]*|_transactions/[^/]+)/_log/([0-9]{20})\.json\Z")
N = tuple[str, int]
YOUNG_MS = 3_600_000
"""Maintenance does not delete younger objects of a journal. If one is deleted, its writer has withdrawn it."""
WRITTEN_CRC = 7
"""CRC of slices in files that writers have written."""


def label(path: str, crc: int) -> str:
    """Return the name of generated slices: the path of their file, or their CRC-32C if no file was written for them."""
    return path if crc == WRITTEN_CRC else f"in memory {crc}"


def _follows(data: bytes, landed: list[bytes]) -> bool:
    """Return True if an entry was written after the latest entry."""
    previous: int | None = json.loads(data.partition(b"\n")[0])["prevCrc"]
    return previous == (crc32c.crc32c(landed[-1]) if landed else None)


@dataclass(frozen=True)
class Appended:
    """A file that a commit of a topic references, of transaction `txn` (id, n), or without a transaction."""

    path: str
    version: int
    txn: N | None


@dataclass
class Ledger:
    """The history of the topics and ids of a store."""

    files: dict[str, list[Appended]] = field(default_factory=dict)
    """Topic -> files in the order of the log."""
    landed: dict[str, list[bytes]] = field(default_factory=dict)
    """Directory of a journal -> its entries."""
    created_entries: dict[str, int] = field(default_factory=dict)
    """Directory of a journal -> the highest number that was ever created, plus one."""
    early: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """Directory and number of entries that do not count yet, because the previous entry was withdrawn."""
    decided: dict[N, dict[str, set[int]] | None] = field(default_factory=dict)
    """(id, n) -> versions by topic of its COMMIT; None for ABORT."""
    groups: dict[N, set[tuple[str, int]]] = field(default_factory=dict)
    """(id, n) -> group and number of the entries that its COMMIT references."""
    newest: dict[str, int] = field(default_factory=dict)
    """Directory of an id -> its latest decision."""
    recorded: dict[str, dict[tuple[N, int], int | None]] = field(default_factory=dict)
    """Topic -> (id, n) and version of each prepare -> the version that records its outcome; None: not recorded."""

    def created(self, key: str, data: bytes) -> None:
        """Handle the creation of an object."""
        found = _ENTRY.match(key)
        if not found:
            return
        folder, number = found[1], int(found[2])
        landed = self.landed.setdefault(folder, [])
        if number < len(landed):
            return  # a deleted number that was reused, which is never in the journal
        known = self.created_entries.get(folder, 0)
        expect(number <= known, f"entry {number} of {folder} leaves a gap")
        self.created_entries[folder] = max(known, number + 1)
        self.early[folder, number] = data
        while (data := self.early.get((folder, len(landed)), b"")) and _follows(data, landed):
            del self.early[folder, len(landed)]
            landed.append(data)
            self._counts(folder, len(landed) - 1, data)

    def taken_back(self, key: str, data: bytes) -> None:
        """Remove an object that its writer has deleted, if it was the last one of its journal."""
        found = _ENTRY.match(key)
        if not found:
            return
        folder, number = found[1], int(found[2])
        landed = self.landed[folder]
        self.early.pop((folder, number), None)
        if number == len(landed) - 1 and landed[number] == data:
            del landed[number]
            if folder.startswith("_"):
                self._forget_decision(folder, json.loads(data)["id"])
            else:
                self._forget_commit(folder, number)

    def _counts(self, folder: str, number: int, data: bytes) -> None:
        if folder.startswith("_"):
            self._decision(folder, number, json.loads(data))
        else:
            self._commit(folder, number, parsed(data, number))

    def _forget_commit(self, topic: str, version: int) -> None:
        self.files[topic] = [file for file in self.files.get(topic, []) if file.version < version]
        self.recorded[topic] = {
            prepare: None if by == version else by
            for prepare, by in self.recorded.get(topic, {}).items()
            if prepare[1] < version
        }

    def _forget_decision(self, folder: str, name: str) -> None:
        landed = self.landed[folder]
        before = json.loads(landed[-1])["newest"] if landed else -1
        for n in range(before + 1, self.newest.get(folder, -1) + 1):
            del self.decided[name, n]
            self.groups.pop((name, n), None)
        self.newest[folder] = before

    def _commit(self, topic: str, version: int, doc: dict[str, Any]) -> None:
        txn = (doc["txn"]["id"], doc["txn"]["n"]) if "txn" in doc else None
        for file in doc.get("files", []):
            if not doc.get("edits"):
                labels = dict.fromkeys(label(file["path"], crc) for crc in file["crc"])
                self.files.setdefault(topic, []).extend(Appended(name, version, txn) for name in labels)
        for item in doc.get("resolved", []):
            self._recorded(topic, version, item)
        if txn is not None:
            self.recorded.setdefault(topic, {})[txn, version] = None

    def _recorded(self, topic: str, version: int, item: dict[str, Any]) -> None:
        what = item["id"], item["n"]
        where = f"{topic} version {version} records {what}"
        expect(what in self.decided, f"{where}, which nobody has decided")
        names = self.decided[what]
        named = set() if names is None else names.get(topic, set())
        recorded = self.recorded.setdefault(topic, {})
        waiting = {own for (txn, own), by in recorded.items() if txn == what and by is None}
        recorded.update({(what, own): version for own in waiting})
        expect(
            set(item["committed"]) & waiting == named & waiting,
            f"{where} as {item['committed']}, its decision names {sorted(named)} of {sorted(waiting)}",
        )

    def _decision(self, folder: str, number: int, doc: dict[str, Any]) -> None:
        before, after = self.newest.get(folder, -1), doc["newest"]
        expect(after >= before, f"entry {number} of {folder}: decisions go back from {before} to {after}")
        expect(after <= before + 1, f"entry {number} of {folder} decides {before + 1} to {after} at once")
        if after > before:
            self.newest[folder] = after
            entry = next((item for item in doc["commits"] if item["n"] == after), None)
            names: dict[str, set[int]] | None = None
            if entry is not None:
                names = {}
                for item in entry["prepares"]:
                    names.setdefault(item["topic"], set()).add(item["version"])
                self.groups[doc["id"], after] = {(item["group"], item["number"]) for item in entry["groups"]}
            self.decided[doc["id"], after] = names
        for item in doc["commits"]:
            known = self.decided.get((doc["id"], item["n"]))
            expect(known is not None, f"entry {number} of {folder} turns ABORT {item['n']} into COMMIT")

    def visible(self, topic: str) -> list[str]:
        """Return the paths of the files whose records are committed, in the order of the log."""
        return [file.path for file in self.files.get(topic, []) if file.txn is None or self._named(topic, file)]

    def _named(self, topic: str, file: Appended) -> bool:
        names = self.decided.get(file.txn) if file.txn is not None else None
        return names is not None and file.version in names.get(topic, set())

    def undecided(self, topic: str) -> list[Appended]:
        """Return the files of undecided transactions."""
        return [file for file in self.files.get(topic, []) if file.txn is not None and file.txn not in self.decided]


class LedgerStore(MemoryStore):
    """A memory store that reports every created object to the ledger."""

    def __init__(self, clock: Callable[[], int], ledger: Ledger, name: str = "test") -> None:
        super().__init__(clock, name)
        self._ledger = ledger

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if created:
            self._ledger.created(key, data)
        return created

    def delete(self, key: str) -> None:
        info = self.stat(key)
        if info is not None and self.now_ms() - info.modified_ms < YOUNG_MS:
            self._ledger.taken_back(key, self.get(key))
        super().delete(key)
