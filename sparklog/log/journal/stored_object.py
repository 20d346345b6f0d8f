"""Read an object of a log, and return its value or a description of the damage.

Readers that need the object call `expect`, which raises an error if the object is damaged. Programs that read all
objects in a root, such as `verify`, continue with the next object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.errors import BadRequest, Corrupt
from sparklog.storage.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject(Generic[T]):
    """The bytes of an object, with the decoded value or a description of the damage.

    An object that requires a newer sparklog (`BadRequest`) is treated as damaged, because this process cannot decode
    it.
    """

    key: str
    data: bytes
    value: T | None = None
    damage: Corrupt | BadRequest | None = None

    def expect(self) -> T:
        """Return the value. Raise the error if the object is damaged."""
        if self.damage is not None:
            raise self.damage
        assert self.value is not None
        return self.value


def read_object(store: Store, key: str, decode: Callable[..., T], *number: int) -> StoredObject[T]:
    """Read an object and decode it with `decode(data, key, *number)`. Raises `NotFound` if it does not exist."""
    try:
        data = store.get(key)
    except Corrupt as damage:
        return StoredObject(key, b"", damage=damage)
    return decode_object(store, key, data, decode, *number)


def decode_object(store: Store, key: str, data: bytes, decode: Callable[..., T], *number: int) -> StoredObject[T]:
    """Decode the bytes of an object, like `read_object`.

    If the bytes are damaged, the object is read again, because a bit may have flipped in transit.
    """
    try:
        return StoredObject(key, data, decode(data, key, *number))
    except (Corrupt, BadRequest):
        data = store.get(key)
    try:
        return StoredObject(key, data, decode(data, key, *number))
    except (Corrupt, BadRequest) as damage:
        return StoredObject(key, data, damage=damage)
