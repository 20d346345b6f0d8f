"""Fixes of damaged objects, the crash-safe application of these fixes, and the report of a repair.

The old bytes of an object are first copied to a directory below `_repair/`, which readers ignore. The new bytes then
replace the old bytes. The replacement is atomic if the store supports atomic writes. If the process stops during a fix,
the object is either damaged or fixed, and a copy of the old bytes may remain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sparklog.common.units import count
from sparklog.log.journal.names import REPAIR_FOLDER
from sparklog.output import json_value
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import RESTORE, Finding, Report
from sparklog.tools.verification.slice_checks import REBUILD

CHUNK_BYTES = 8 << 20
Patch: TypeAlias = tuple[int, bytes]
"""A position in an object, and the new bytes at this position."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The changes that repair an object.

    Attributes:
        how: a description of the changes for the report.
        size: the new size of the object, or None if the object itself does not change.
        patches: the positions and the new bytes in the object.
        creates: the keys and bytes of objects that are created before the object is changed.
        drops: the keys of objects that are set aside after the object is changed.
        damaged: keys of the objects that the fix repairs.
    """

    key: str
    how: str
    size: int | None = None
    patches: tuple[Patch, ...] = ()
    creates: tuple[tuple[str, bytes], ...] = ()
    drops: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @classmethod
    def rewrite(
        cls,
        key: str,
        how: str,
        data: bytes,
        *,
        creates: tuple[tuple[str, bytes], ...] = (),
        drops: tuple[str, ...] = (),
        damaged: tuple[str, ...] = (),
    ) -> Fix:
        """Return the fix that replaces all bytes of an object."""
        return cls(key, how, len(data), ((0, data),), creates, drops, damaged)

    def patched(self, start: int, data: bytes) -> bytes:
        """Apply the patches to `data`, which are the bytes of the object at position `start`."""
        changed = bytearray(data)
        for position, new in self.patches:
            low, high = max(position, start), min(position + len(new), start + len(data))
            if low < high:
                changed[low - start : high - start] = new[low - position : high - position]
        return bytes(changed)


def is_blocked(store: Store, key: str) -> bool:
    """Return True if a directory, link or special file has the name of an object and prevents writing the object."""
    folder, _, name = key.rpartition("/")
    return name in store.obstacles(f"{folder}/" if folder else "")


@dataclass(slots=True)
class Repairer:
    """Applies fixes to a store.

    Attributes:
        folder: the directory below `_repair/` for old bytes.
        copies: the keys of the copies, by the key of the copied object.
    """

    store: Store
    folder: str
    copies: dict[str, str] = field(default_factory=dict)

    def can_apply(self, fix: Fix) -> bool:
        """Return True if no directory, link or special file has the name of an object that the fix writes."""
        written = [key for key, _ in fix.creates] + ([] if fix.size is None else [fix.key])
        return not any(is_blocked(self.store, key) for key in written)

    def apply(self, fix: Fix) -> None:
        """Apply a fix. If an earlier repair was interrupted, objects to create may already exist."""
        for key, data in fix.creates:
            self.store.create(key, data)
        if fix.size is not None:
            self.copy_aside(fix.key)
            self.store.overwrite(fix.key, self._new_chunks(fix, fix.size))
        for key in fix.drops:
            self.copy_aside(key)
            self.store.delete(key)

    def copy_aside(self, key: str) -> None:
        """Copy an object below `_repair/`, unless this run has already copied the object."""
        info = self.store.stat(key)
        if info is None or key in self.copies:
            return
        copy = f"{REPAIR_FOLDER}/{self.folder}/{key}"
        writer = self.store.writer(copy)
        try:
            for start in range(0, info.size, CHUNK_BYTES):
                writer.write(self.store.get(key, start, CHUNK_BYTES))
        except BaseException:
            writer.discard()
            raise
        writer.close()
        self.copies[key] = copy

    def _new_chunks(self, fix: Fix, size: int) -> Iterator[bytes]:
        """Yield the new bytes of the object. Bytes that no patch replaces are read from the old object."""
        if len(fix.patches) == 1 and fix.patches[0][0] == 0 and len(fix.patches[0][1]) == size:
            yield fix.patches[0][1]
            return
        for start in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - start)
            old = self.store.get(fix.key, start, length)
            yield fix.patched(start, old + bytes(length - len(old)))


@dataclass(frozen=True, slots=True)
class Repaired:
    """An object that was fixed or set aside.

    Attributes:
        how: a description of the changes.
        aside: the key of the copy of the old bytes, or None if there is no copy.
    """

    file: str
    how: str
    aside: str | None = None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        executed: False if no object was changed; in this case, `repaired` and `left` describe the expected result of a
            repair.
        repaired: the objects that were fixed or set aside.
        left: the remaining problems.
        before: the number of problems before the repair.
    """

    location: str
    executed: bool
    repaired: tuple[Repaired, ...]
    left: tuple[Finding, ...]
    before: int

    @property
    def sound(self) -> bool:
        """True if no problems remain."""
        return not self.left


def remaining_findings(report: Report, repaired_files: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings about files other than `repaired_files`. A remedy that recommends a rebuild is replaced,
    because the repair could not rebuild the object.
    """
    remaining = (finding for finding in report.findings if finding.file not in repaired_files)
    return tuple(replace(finding, remedy=RESTORE) if finding.remedy == REBUILD else finding for finding in remaining)


def summary(report: RepairReport) -> str:
    """Return the report as text: the change to each file, the remaining problems, and the result in the last line."""
    lines = [f"{fixed.file}: {'' if report.executed else 'would be '}{fixed.how}" for fixed in report.repaired]
    lines += [f"remaining: {finding}" for finding in report.left]
    if not lines:
        return f"nothing to repair in {report.location}"
    files = f"{count(len(report.repaired), 'file')} of {report.location}"
    rest = "no damage remains"
    if report.left:
        verb = "remains" if len(report.left) == 1 else "remain"
        rest = f"{count(len(report.left), 'problem')} {verb} that repair cannot fix"
    if report.executed:
        lines.append(f"repaired {files}; {rest}")
    else:
        lines.append(f"would repair {files}, after which {rest}; nothing was changed; add --execute to repair")
    return "\n".join(lines)


def document(report: RepairReport) -> dict[str, object]:
    """Return the report as a JSON object."""
    return {
        "location": report.location,
        "executed": report.executed,
        "sound": report.sound,
        "problems": report.before,
        "repaired": json_value(report.repaired),
        "left": json_value(report.left),
    }
