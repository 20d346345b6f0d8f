"""An independent judge of transactions: reads raw objects as they land, and knows what must be visible and what not.

It shares no code with what it judges. A slice of a commit with `txn` is visible if the COMMIT of its n, the first
decision there is, names its version in its topic; a slice of any other commit is. What topics record of decisions is
compared with that the moment it lands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparklog.storage.memory import MemoryStore
from tests.log.simulation.model import parsed
from tests.log.simulation.simulated_world import SimulationError

_COMMIT = re.compile(r"([^_/][^/]*)/_log/([0-9]{20})\.json\Z")
_DECISION = re.compile(r"_transactions/([^/]+)/_log/([0-9]{20})\.json\Z")
N = tuple[str, int]
WRITTEN_CRC = 7
"""Of slices in files that writers have written."""


def label(path: str, crc: int) -> str:
    """Return the name of made-up slices: the path of their file, or their CRC-32C where none was written for them."""
    return path if crc == WRITTEN_CRC else f"in memory {crc}"


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise SimulationError(message)


@dataclass(frozen=True)
class Appended:
    """A file that a commit of a topic names: of transaction `txn` (id, n), or of none."""

    path: str
    version: int
    txn: N | None


@dataclass
class Ledger:
    """All that happened to the topics and ids of a store."""

    files: dict[str, list[Appended]] = field(default_factory=dict)
    """Topic -> files in the order of the log."""
    commits: dict[str, int] = field(default_factory=dict)
    """Topic -> number of commits."""
    decided: dict[N, dict[str, set[int]] | None] = field(default_factory=dict)
    """(id, n) -> versions by topic of its COMMIT, None for ABORT."""
    groups: dict[N, set[tuple[str, int]]] = field(default_factory=dict)
    """(id, n) -> group and number of the entries that its COMMIT names."""
    newest: dict[str, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, set[tuple[N, int]]] = field(default_factory=dict)
    """Topic -> (id, n) and version of the prepares whose outcome it has not recorded."""

    def created(self, key: str, data: bytes) -> None:
        """An object has come to exist."""
        found = _COMMIT.match(key)
        if found:
            self._commit(found[1], int(found[2]), parsed(data, int(found[2])))
        found = _DECISION.match(key)
        if found:
            self._decision(found[1], int(found[2]), json.loads(data))

    def _commit(self, topic: str, version: int, doc: dict[str, Any]) -> None:
        if version < self.commits.get(topic, 0):
            return  # a number that was collected and used again: never in the log
        self.commits[topic] = version + 1
        txn = (doc["txn"]["id"], doc["txn"]["n"]) if "txn" in doc else None
        for file in doc.get("files", []):
            if not doc.get("edits"):
                labels = dict.fromkeys(label(file["path"], crc) for crc in file["crc"])
                self.files.setdefault(topic, []).extend(Appended(name, version, txn) for name in labels)
        for item in doc.get("resolved", []):
            self._recorded(topic, version, item)
        if txn is not None:
            self.waiting.setdefault(topic, set()).add((txn, version))

    def _recorded(self, topic: str, version: int, item: dict[str, Any]) -> None:
        what = item["id"], item["n"]
        where = f"{topic} version {version} records {what}"
        expect(what in self.decided, f"{where}, which nobody has decided")
        names = self.decided[what]
        named = set() if names is None else names.get(topic, set())
        open_here = self.waiting.setdefault(topic, set())
        waiting = {own for txn, own in open_here if txn == what}
        open_here -= {(what, own) for own in waiting}
        expect(
            set(item["committed"]) & waiting == named & waiting,
            f"{where} as {item['committed']}, its decision names {sorted(named)} of {sorted(waiting)}",
        )

    def _decision(self, folder: str, number: int, doc: dict[str, Any]) -> None:
        if number < self.entries.get(folder, 0):
            return
        expect(number == self.entries.get(folder, 0), f"entry {number} of {folder} leaves a gap")
        self.entries[folder] = number + 1
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
        """Paths of the files whose records are committed, in the order of the log."""
        return [file.path for file in self.files.get(topic, []) if file.txn is None or self._named(topic, file)]

    def _named(self, topic: str, file: Appended) -> bool:
        names = self.decided.get(file.txn) if file.txn is not None else None
        return names is not None and file.version in names.get(topic, set())

    def undecided(self, topic: str) -> list[Appended]:
        """Files of transactions that nobody has decided."""
        return [file for file in self.files.get(topic, []) if file.txn is not None and file.txn not in self.decided]


class LedgerStore(MemoryStore):
    """A memory store that shows the ledger every object the moment it exists."""

    def __init__(self, clock: Callable[[], int], ledger: Ledger, name: str = "test") -> None:
        super().__init__(clock, name)
        self._ledger = ledger

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if created:
            self._ledger.created(key, data)
        return created
