"""One append file being written: slices in, then the footer; appending and merging write the same form."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparklog.format.append_file import SliceIndex, encode_footer
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.state.slices import FileSlices
from sparklog.storage.store import ObjectWriter, Store


@dataclass(slots=True)
class _Columns:
    partition: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    min_ts: list[int] = field(default_factory=list)
    max_ts: list[int] = field(default_factory=list)
    crc: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    indexes: list[SliceIndex | None] = field(default_factory=list)
    aborted: list[AbortedTransactions | None] = field(default_factory=list)


class AppendOutput:
    """The file `path` below the folder of `topic`. It exists once `close` has returned; `discard` leaves nothing."""

    def __init__(self, store: Store, topic: str, path: str) -> None:
        self.path = path
        self.position = 0
        self._columns = _Columns()
        self._writer: ObjectWriter = store.writer(f"{topic}/{path}")

    def write(self, *data: bytes | bytearray | memoryview) -> None:
        """Append some bytes of a slice, all or as many as are held at a time: `end_slice` says then what it was."""
        for piece in data:
            self._writer.write(piece)

    def end_slice(
        self,
        *,
        partition: int,
        nbytes: int,
        offsets: int,
        records: int,
        min_ts: int,
        max_ts: int,
        crc: int,
        flags: int,
        index: SliceIndex | None,
        aborted: AbortedTransactions | None = None,
    ) -> None:
        """What the last `nbytes` bytes written are: one slice. Fields as in `FileSlices`, `index` by `build_index`.

        `aborted`: Kafka's transactions that it ends by an ABORT marker, as in `append_file.SliceEntry`.
        """
        self.position += nbytes
        columns = self._columns
        columns.partition.append(partition)
        columns.nbytes.append(nbytes)
        columns.offsets.append(offsets)
        columns.records.append(records)
        columns.min_ts.append(min_ts)
        columns.max_ts.append(max_ts)
        columns.crc.append(crc)
        columns.flags.append(flags)
        columns.indexes.append(index)
        columns.aborted.append(aborted)

    def close(self) -> FileSlices:
        """Write the footer, make the file durable, and say what is in it."""
        columns = self._columns
        footer = encode_footer(
            partition=columns.partition,
            nbytes=columns.nbytes,
            offsets=columns.offsets,
            records=columns.records,
            min_ts=columns.min_ts,
            max_ts=columns.max_ts,
            crc=columns.crc,
            flags=columns.flags,
            indexes=columns.indexes,
            aborted=columns.aborted,
        )
        self._writer.write(footer)
        self._writer.close()
        return FileSlices(
            path=self.path,
            size=self.position + len(footer),
            footer_length=len(footer),
            partition=tuple(columns.partition),
            nbytes=tuple(columns.nbytes),
            offsets=tuple(columns.offsets),
            records=tuple(columns.records),
            min_ts=tuple(columns.min_ts),
            max_ts=tuple(columns.max_ts),
            crc=tuple(columns.crc),
            flags=tuple(columns.flags),
        )

    def discard(self) -> None:
        """Leave nothing behind."""
        self._writer.discard()
