"""Batches of a file in memory, with what tells their place in messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from sparklog.format.record_batch import BatchHeaders, BoolArray, BytesLike, Int64Array, Place

if TYPE_CHECKING:
    from sparklog.format.decode import RecordColumns

W = TypeVar("W", bound="Window")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Whole batches in memory: `data[0]` is byte `start` of `file`, and positions in `headers` count from there."""

    data: BytesLike
    start: int
    headers: BatchHeaders
    file: str

    @property
    def place(self) -> Place:
        return Place(self.file, self.start)

    def select(self: W, rows: slice | Int64Array | BoolArray) -> W:
        """Return the window with the headers of these batches only; the data stay."""
        return replace(self, headers=self.headers[rows])

    def decode(
        self, columns: Collection[str], select: BoolArray | None = None, *, check_crc: bool = False, **offsets: int
    ) -> RecordColumns:
        """Decode the records of the batches that `select` names; `offsets`: as for `sparklog.format.decode.decode`."""
        from sparklog.format.decode import decode

        return decode(
            self.data,
            self.headers,
            columns=columns,
            select=select,
            check_crc=check_crc,
            place=self.place,
            **offsets,
        )
