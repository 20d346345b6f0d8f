"""Cures: which bytes an object should have, and how they get there without a moment that is worse than the damage.

The bytes that were there are copied below `_repair/` first, where nothing reads them. Then the new ones take their
place, at once where the store can do that. So a process that dies on the way leaves what was there, or the cure, and
perhaps a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sparklog.log.journal.names import REPAIR_FOLDER
from sparklog.storage.store import Store

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


@dataclass(slots=True)
class Healer:
    """Applies cures in a store. `folder`: below `_repair/`, for what is set aside; `aside`: its keys so far."""

    store: Store
    folder: str
    aside: dict[str, str] = field(default_factory=dict)

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
